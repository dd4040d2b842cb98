"""Numbers that go wrong: no step is applied, one is the end in float32 and bfloat16, many are in float16."""

import pytest
import torch
from torch import nn

from configs.schema import OptimSettings
from errors import UserError
from training.checkpoint import State
from training.guard import IN_A_ROW, Guard
from training.optim import build_optimizer
from training.precision import Precision
from training.saving import Saver

CPU = torch.device("cpu")
ADAM = OptimSettings(
    lr=0.1, min_lr=0.0, warmup_steps=0, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip=1.0
)
GOOD, BAD = torch.tensor(1.0), torch.tensor(float("inf"))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.schemes, self.line = nn.ModuleList(), nn.Linear(2, 2, bias=False)


def guard(name: str) -> Guard:
    return Guard(Precision(name, CPU), [0, 0, 0])


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_broken_gradient_changes_neither_weights_nor_optimizer(name, bad):
    """The loop's order of calls, with a good step, a broken one and a good one."""
    runs = []
    for gradients in ([1.0, bad, 0.5], [1.0, 0.5]):
        torch.manual_seed(0)
        net, watch, scaler = Net(), guard(name), Precision(name, CPU).scaler()
        optimizer = build_optimizer(net, ADAM)
        for step, value in enumerate(gradients):
            scaler.scale((net.line.weight * value).sum()).backward()
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(net.parameters(), ADAM.clip)
            optimizer.found_inf = watch.see(step, GOOD, norm)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        runs.append((net.line.weight.detach(), optimizer.state[net.line.weight]))
    (weight, state), (weight2, state2) = runs
    assert torch.equal(weight, weight2) and weight.isfinite().all()
    assert all(torch.equal(state[key], state2[key]) for key in state)


@pytest.mark.parametrize("name", ["fp32", "bf16"])
@pytest.mark.parametrize(("loss", "norm"), [(BAD, GOOD), (GOOD, BAD)])
def test_one_ends_a_run_even_if_it_is_looked_for_later(name, loss, norm):
    watch, scaler = guard(name), Precision(name, CPU).scaler()
    watch.see(1, GOOD, GOOD)
    assert watch.check(scaler, "") == [0, 0, 0]
    watch.see(2, loss, norm)
    watch.see(3, GOOD, GOOD)
    with pytest.raises(UserError, match=r"step 2: .* not finite; here\. .*optim\.lr"):
        watch.check(scaler, "here")


def test_float16_counts_and_gives_up_in_the_end():
    watch, scaler = guard("fp16"), Precision("fp16", CPU).scaler()
    for step in range(IN_A_ROW - 1):
        watch.see(step, GOOD, BAD)
    assert watch.check(scaler, "") == [49, 49, 48]
    watch.see(50, GOOD, GOOD)
    assert watch.check(scaler, "") == [49, 0, 48]
    watch = Guard(watch.precision, [49, 49, 48])  # resumed there
    watch.see(49, BAD, GOOD)
    with pytest.raises(UserError, match=r"step 49: 50 steps in a row.*here.*precision=bf16"):
        watch.check(scaler, "here")
    scaler.load_state_dict({**scaler.state_dict(), "scale": 1e-5})
    with pytest.raises(UserError, match="loss scale of 1e-05"):
        guard("fp16").check(scaler, "")


@pytest.mark.parametrize("where", ["weight", "optimizer"])
def test_what_is_not_finite_is_never_saved(tmp_path, where):
    net, scaler = Net(), Precision("fp32", CPU).scaler()
    optimizer = build_optimizer(net, ADAM)
    net.line.weight.grad = torch.ones(2, 2)
    optimizer.step()
    spoilt = (
        net.line.weight.data
        if where == "weight"
        else next(iter(optimizer.state.values()))["exp_avg"]
    )
    spoilt[0, 0] = float("nan")
    saver = Saver(tmp_path, None, None, net, optimizer, scaler, None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="step 3: a weight is not finite, so nothing was saved"):
        saver.save(State(data_hash="", precision="fp32", step=3))
    assert not list(tmp_path.iterdir())


def test_steps_that_float16_left_out_do_not_stop_a_run_that_goes_on_in_float32():
    guard = Guard(Precision("fp32", CPU), [3, 0, 7])
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    guard.see(8, torch.tensor(1.0), torch.tensor(1.0))
    assert guard.check(scaler, "") == [3, 0, 7]
    guard.see(9, torch.tensor(torch.nan), torch.tensor(1.0))
    with pytest.raises(UserError, match="step 9"):
        guard.check(scaler, "")
