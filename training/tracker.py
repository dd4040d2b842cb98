"""Where a run's numbers go besides its own folder: wandb, or nowhere.

A tracker is a null object (`NoTracker`) unless wandb is chosen, so that no command ever asks
whether tracking is on. Unusual: no account and no network are normal cases. `mode: auto` goes
online only where there is a login, a server that cannot be reached turns the run into an offline
one, and `notes` says once what the user can do with it. wandb is imported when a run starts, so
that `--help` and `tracker=none` never pay for it.
"""

import math
import os
import shlex
from pathlib import Path
from typing import Any, Literal, Self
from uuid import uuid4

from errors import UserError

Mode = Literal["auto", "online", "offline", "disabled"]
Row = dict[str, Any]  # an entry of `rows` in eval/<label>.json

# Seconds. wandb's own 90 (start) and for ever (finish) would keep a machine waiting for a network
# that it does not have; what was not uploaded stays on disk, for `wandb sync`.
INIT_TIMEOUT, FINISH_TIMEOUT = 20.0, 120.0


class NoTracker:
    """Tracks nothing, and is the interface. `with tracker:` finishes a job, with 1 on an error."""

    run_id: str | None = None  # to store in a checkpoint and give to `start` on resume

    def __init__(self) -> None:
        self.notes: list[str] = []  # lines for the user, in order; may grow in `start` and `finish`

    def start(
        self,
        *,
        folder: Path,
        name: str,
        group: str,
        job_type: str,
        config: dict[str, Any],
        run_id: str | None,
    ) -> None:
        """Open a run. `config` is a plain, fully resolved dict; `run_id` goes on with a run."""

    def log(self, metrics: dict[str, float], *, step: int, tokens: int) -> None:
        """Metrics of one optimizer step, named as in metrics.jsonl, drawn over tokens so far."""

    def log_evaluation(self, rows: list[Row]) -> None:
        """The rows of one eval/<label>.json; rows and values that do not exist are left out."""

    def log_report(self, table: list[Row], page: Path) -> None:
        """A comparison: one dict a row, all with the same keys, and the HTML report."""

    def finish(self, exit_code: int) -> None:
        """Close the run; harmless where none is open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.finish(0 if kind is None else 1)


class WandbTracker(NoTracker):
    """One wandb run. Its files lie under `<folder>/wandb`, whether they are uploaded or not."""

    def __init__(
        self, *, project: str, mode: Mode, entity: str | None, group: str | None, tags: list[str]
    ) -> None:
        super().__init__()
        if not project or set(project) & set("/\\#?%:"):
            raise UserError(f"tracker.project={project!r}: wandb wants a name without / \\ # ? % :")
        if len(project) > 128:
            raise UserError(f"tracker.project={project}: wandb takes 128 characters at most")
        for tag in tags:
            if not 1 <= len(tag) <= 64:
                raise UserError(
                    f"tracker.tags: wandb takes tags of 1 to 64 characters, not {tag!r}"
                )
        self.mode: Mode = mode
        self.project, self.entity = project, entity
        self.group, self.tags = group, list(tags)
        self._run: Any = None
        self._first_step = 0

    def start(
        self,
        *,
        folder: Path,
        name: str,
        group: str,
        job_type: str,
        config: dict[str, Any],
        run_id: str | None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)  # wandb would silently turn to /tmp
        try:
            Path.home()
        except RuntimeError:  # a container's user without a home: wandb does not start without one
            os.environ["HOME"] = str(folder.absolute() / "wandb")
        self.run_id = run_id or uuid4().hex[:8]
        self._open(
            project=self.project,
            entity=self.entity,
            group=self.group or group,
            tags=self.tags,
            dir=str(folder),
            name=name,
            job_type=job_type,
            config=config,
            id=self.run_id,
            resume="allow",
        )
        self._first_step = self._run.starting_step  # `step` still says 0 here on a resumed run
        self._run.define_metric("tokens")
        self._run.define_metric("train/*", step_metric="tokens")
        self._run.define_metric("val/*", step_metric="tokens")
        self._run.define_metric("val/loss", step_metric="tokens", summary="min,last")

    def _open(self, **run: Any) -> None:
        import wandb
        from wandb.errors import CommError, UsageError

        mode, why = _choose_mode(self.mode)
        settings = wandb.Settings(
            silent=True,
            console="off",  # a live progress bar would be stored frame by frame
            init_timeout=INIT_TIMEOUT,
            finish_timeout=FINISH_TIMEOUT,
            finish_timeout_raises=True,
        )
        try:
            self._run = wandb.init(mode=mode, settings=settings, **run)
        except UsageError as error:
            raise UserError(f"tracker.mode={self.mode}: wandb says: {_first_line(error)}") from None
        except CommError as error:
            why = f"the server did not answer ({_first_line(error)})"
            wandb.teardown()  # else the service holds the id of the failed start as "in use"
            self._run = wandb.init(mode="offline", settings=settings, **run)
        self._note(why)

    def _note(self, why: str) -> None:
        if self._run.disabled:
            return
        if not self._run.offline:
            self.notes.append(f"wandb: {self._run.url}")
            return
        files = shlex.quote(str(self._run.settings.sync_dir))
        self.notes += [
            f"wandb: {why}, so this run is tracked offline",
            f"  look at it now:   wandb leet {files}",
            f"  upload it later:  wandb login && {_sync(self._run)}",
        ]

    def log(self, metrics: dict[str, float], *, step: int, tokens: int) -> None:
        # Training that resumes from a checkpoint repeats steps that the server has seen; wandb
        # drops what lies below its last step and warns each time. The points are equal anyway,
        # because the order of the data is.
        if step < self._first_step:
            return
        self._run.log({**metrics, "tokens": tokens}, step=step)

    def log_evaluation(self, rows: list[Row]) -> None:
        self._run.define_metric("eval/context_length")
        self._run.define_metric("eval/*", step_metric="eval/context_length")
        points = evaluation_points(rows)
        for index, (length, values) in enumerate(points.items()):
            self._run.log({"eval/context_length": length, **values}, step=index)
            if (ppl := values.get("eval/same_tokens/ppl")) is not None:
                self._run.summary[f"eval/ppl@{length}"] = ppl

    def log_report(self, table: list[Row], page: Path) -> None:
        import wandb

        columns: list[Any] = list(table[0]) if table else []
        data: list[Any] = [[row[column] for column in columns] for row in table]
        self._run.log(
            {
                "report/table": wandb.Table(columns=columns, data=data),
                "report/page": wandb.Html(str(page), inject=False),
            },
            step=0,
        )

    def finish(self, exit_code: int) -> None:
        run, self._run = self._run, None
        if run is None:
            return
        try:
            run.finish(exit_code=exit_code)
        except TimeoutError:
            self.notes.append(f"wandb: not everything was uploaded; type: {_sync(run)}")


def _sync(run: Any) -> str:
    """The command that uploads all parts of a run. A later part sent alone would replace the earlier ones' points."""
    folder = Path(run.settings.sync_dir)
    parts = {folder, *folder.parent.glob(f"*run-*-{run.id}")}
    stamped = sorted(parts, key=lambda path: path.name.removeprefix("offline-"))
    return shlex.join(["wandb", "sync", *map(str, stamped)])


def _choose_mode(asked: Mode) -> tuple[Literal["online", "offline", "disabled"], str]:
    """wandb's mode, and why it is offline. `auto` also follows `wandb offline` and WANDB_MODE."""
    import wandb

    session = wandb.setup(wandb.Settings(silent=True))
    if asked != "auto":
        return asked, "tracker.mode=offline"
    if session.settings.mode in ("offline", "disabled"):
        return session.settings.mode, "wandb is set to offline"
    if wandb.login(prompt=False, verify=False):
        return "online", ""
    return "offline", "there is no wandb login"


def evaluation_points(rows: list[Row]) -> dict[int, dict[str, float]]:
    """Context length -> `eval/<protocol>/<ppl|loss|bpb|word_ppl>` measured there, shortest first.

    Position bins have an axis of their own and are left to the report.
    """
    points: dict[int, dict[str, float]] = {}
    for row in sorted(rows, key=lambda row: row["context_length"]):
        if not row["supported"] or row["bin"] is not None:
            continue
        for metric in ("ppl", "loss", "bpb", "word_ppl"):
            value = row[metric]
            if value is not None and math.isfinite(value):
                limited = "" if row["window"] is None else f"_window-{row['window']}"
                key = f"eval/{row['protocol']}{limited}/{metric}"
                points.setdefault(row["context_length"], {})[key] = value
    return points


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


TRACKERS: dict[str, type[NoTracker]] = {"wandb": WandbTracker, "none": NoTracker}
