"""Games: players who move in turn, resumable at every turn, also after a kill."""

import math
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tangentlab.bench.compare import compare_runs
from tangentlab.bench.errors import RunStopped
from tangentlab.bench.folder import RunFolder
from tangentlab.bench.runner import Outcome, make_config
from tangentlab.experiments import Lab, Minibatches, OnPeriod, OnSteps, Player, Results, find, play
from tests.experiments.test_kill import Command, rows_of, the_only_run, wait_for
from tests.experiments.toys import ToyGame, toy_turn

DATA = torch.linspace(-1, 1, 24)[:, None]


def toy_players() -> dict[str, Player]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ToyGame.players()


def weights(players: Mapping[str, Player]) -> Tensor:
    parts = [value for player in players.values() for value in player.model.state_dict().values()]
    return torch.cat([value.double().flatten() for value in parts])


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, make_config(find("toy-game").at("smoke"), "smoke"))


def lab_in(folder: RunFolder, stopping: Callable[[], bool] = lambda: False) -> Lab:
    return Lab(find("toy-game").at("smoke"), folder, 0, stopping=stopping)


@pytest.mark.parametrize("moment", [0, 1, 5, 8])
def test_a_game_stopped_at_any_turn_goes_on_bit_for_bit(folder: RunFolder, moment: int) -> None:
    def run(lab: Lab | None, log: list[dict[str, float]]) -> dict[str, Player]:
        players = toy_players()
        record = OnPeriod(1, lambda game: log.append(game.losses))
        batches = Minibatches((DATA,), 6, seed=1)
        play(players, batches, toy_turn, 9, lab=lab, callbacks=[record], checkpoint_seconds=1e9)
        return players

    undisturbed: list[dict[str, float]] = []
    reference = weights(run(None, undisturbed))
    log: list[dict[str, float]] = []
    with pytest.raises(RunStopped):
        run(lab_in(folder, lambda: len(log) > moment), log)
    torch.manual_seed(999)  # what happened in between must not matter
    assert torch.equal(weights(run(lab_in(folder), log)), reference)
    assert str(log) == str(undisturbed)


def test_a_game_killed_without_warning_resumes_to_the_same_metrics_and_weights(
    command: Command, bench: Callable[..., Outcome], tmp_path: Path
) -> None:
    runs = tmp_path / "killed"
    words = (
        "run",
        "toy-game",
        "--scale",
        "smoke",
        "--seeds",
        "1",
        "--set",
        "delay=0.03",
        "--out",
        str(runs),
        "--resume",
    )
    for rows in (3, 8):
        process = command(*words)
        wait_for(lambda rows=rows: len(rows_of(runs)) >= rows, process)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    process = command(*words)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    reference = bench("toy-game", seeds=1)
    comparison = compare_runs(the_only_run(runs), reference.folder)
    assert comparison.identical and comparison.rows > 12
    assert (Results(the_only_run(runs)).arrays("weights") == Results(reference.folder).arrays("weights")).all()


def test_a_move_changes_its_own_player_alone() -> None:
    players = toy_players()
    one, other = players["one"], players["other"]
    before, kept = weights({"one": one}), weights({"other": other})
    one.move((one.model(DATA) * other.model[0](DATA)).mean())
    assert not torch.equal(weights({"one": one}), before) and torch.equal(weights({"other": other}), kept)
    assert all(parameter.grad is None for parameter in other.model.parameters())


def test_a_move_takes_the_gradients_that_a_function_fills_in() -> None:
    model = nn.Linear(1, 1)
    player, start = Player(model, torch.optim.SGD(model.parameters(), lr=1.0)), model.weight.item()

    def fill(parameters: object) -> None:
        for parameter in parameters:  # type: ignore[attr-defined]
            parameter.grad = torch.full_like(parameter, 0.25)

    player.move(model(DATA).mean(), fill)
    assert model.weight.item() == pytest.approx(start - 0.25)


def test_a_loss_that_is_not_finite_ends_the_game_before_the_move() -> None:
    players, turns = toy_players(), []

    def turn(players: Mapping[str, Player], batch: tuple[Tensor, ...]) -> None:
        turns.append(weights(players))
        toy_turn(players, batch)
        if len(turns) == 3:
            players["one"].move(players["one"].model(batch[0]).mean() * math.nan)

    game = play(players, Minibatches((DATA,), 6, 0), turn, 10)
    assert game.diverged and game.step == 2 and len(turns) == 3
    assert weights(players).isfinite().all()


def test_a_game_that_ended_is_restored_and_not_repeated_and_can_be_stopped(folder: RunFolder) -> None:
    calls: list[int] = []

    def run() -> int:
        stop = OnSteps((4,), lambda game: game.stop())
        record = OnPeriod(1, lambda game: calls.append(game.step))
        batches = Minibatches((DATA,), 6, 0)
        return play(toy_players(), batches, toy_turn, 10, lab=lab_in(folder), callbacks=[record, stop]).step

    assert run() == run() == 4
    assert calls == [0, 1, 2, 3, 4]
