"""Compare evaluated runs: python compare.py 'runs=[outputs/rope/*,outputs/alibi/*]'

Prints the headline table and writes a report: one HTML page, the same as Markdown, exact numbers as
CSV, figures as SVG. Only files that training and evaluation left are read; no model is loaded.
"""

from pathlib import Path

from configs.check import build
from configs.cli import alone, command
from configs.schema import CompareConfig
from errors import printable


def compare(config: CompareConfig, given: list[str]) -> None:
    from rich.console import Console
    from rich.text import Text

    from evaluation.formats import to_rich
    from evaluation.report import make_report, write
    from training.metrics import read_metrics
    from training.tracker import TRACKERS

    tracker = build("tracker", TRACKERS, config.tracker)
    report = make_report(
        config.runs,
        curve=lambda folder: read_metrics(folder / "metrics.jsonl"),
        protocol=config.protocol,
        baseline=config.baseline,
        claim=config.claim,
    )
    page = write(report, Path(config.out))
    console = Console(highlight=False, soft_wrap=True)
    console.print(to_rich(report.headline, console.width), soft_wrap=False)
    console.print(Text(report.headline.note, "dim"))
    for warning in report.page.warnings:
        console.print(Text(printable(f"warning: {warning}"), "bold yellow"))
    for line in [*report.page.remarks, report.page.finding]:
        console.print(Text(printable(line)))
    with tracker:
        tracker.start(
            folder=Path(config.out),
            name=f"compare {Path(config.out).name}",
            group="compare",
            job_type="compare",
            config={"runs": list(config.runs), "protocol": config.protocol, "claim": config.claim},
            run_id=None,
        )
        tracker.log_report(report.headline.records(), page)
    for note in tracker.notes:
        print(note)
    print(f"done: {page}")


main = command("compare", CompareConfig, alone(compare))

if __name__ == "__main__":
    main()
