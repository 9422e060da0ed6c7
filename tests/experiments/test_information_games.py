"""The games of mutual information: turns, packing, stacking, and their resumption bit for bit."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Generator, Tensor, nn

from tangentlab.bench.errors import RunStopped
from tangentlab.bench.folder import RunFolder
from tangentlab.bench.runner import make_config
from tangentlab.data import Dataset, gaussian_grid
from tangentlab.data.toys import grid, spiral
from tangentlab.experiments import Lab, Minibatches, OnPeriod, Player, find, play
from tangentlab.experiments.information._classifier import in_unit_range
from tangentlab.experiments.information._games import DenseCritic, DenseGenerator, GanTurn, InferenceTurn, Information
from tangentlab.experiments.information.gan_modes import coverage
from tangentlab.experiments.information.stacked_mnist import stack, stacked_coverage
from tests.experiments.test_game import weights

POINTS = gaussian_grid(200, Generator().manual_seed(0)).inputs


def seeded_players(make: Callable[[], dict[str, Player]]) -> dict[str, Player]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make()


def gan_players() -> dict[str, Player]:
    return {
        "generator": Player.adam(DenseGenerator(3, 2, 8), lr=1e-2),
        "discriminator": Player.adam(DenseCritic(2, 8), lr=1e-2),
        "statistics": Player.adam(DenseCritic(2 + 2, 8, nn.ELU), lr=1e-2),
    }


def inference_players() -> dict[str, Player]:
    return {
        "inference": Player.adam(DenseGenerator(2, 2, 16), DenseGenerator(2, 2, 16), lr=1e-2),
        "discriminator": Player.adam(DenseCritic(4, 8), lr=1e-2),
        "statistics": Player.adam(DenseCritic(4, 8), lr=1e-2),
        "cycle": Player.adam(DenseCritic(4, 8), lr=1e-2),
    }


@pytest.mark.parametrize("moment", [1, 4])
def test_a_gan_with_mine_goes_on_bit_for_bit_with_its_moving_average(tmp_path: Path, moment: int) -> None:
    folder = RunFolder.create(tmp_path, make_config(find("toy-game").at("smoke"), "smoke"))

    def run(seen: list[float], stopping: Callable[[], bool] | None) -> tuple[Tensor, float | None]:
        players, information = seeded_players(gan_players), Information(1.0)
        lab = Lab(find("toy-game").at("smoke"), folder, 0, stopping=stopping) if stopping is not None else None
        watch = OnPeriod(1, lambda game: seen.append(game.loss))
        turn, batches = GanTurn(3, 2, information), Minibatches((POINTS,), 20, 0)
        play(
            players,
            batches,
            turn,
            7,
            lab=lab,
            callbacks=[watch],
            parts={"information": information},
            checkpoint_seconds=1e9,
        )
        return weights(players), information.objective.log_average

    reference = run([], None)
    seen: list[float] = []
    with pytest.raises(RunStopped):
        run(seen, lambda: len(seen) > moment)
    again = run(seen, lambda: False)
    assert torch.equal(again[0], reference[0]) and again[1] == reference[1] is not None


def test_without_the_information_term_the_statistics_network_rests() -> None:
    players = seeded_players(gan_players)
    before = weights({"statistics": players["statistics"]})
    GanTurn(3, 2, Information(0.0))(players, (POINTS[:20],))
    assert torch.equal(weights({"statistics": players["statistics"]}), before)


@pytest.mark.parametrize(("cycle", "beta"), [("", 0.0), ("", 1.0), ("l2", 0.0), ("adversarial", 0.0)])
def test_every_rival_of_inference_moves_the_players_it_needs_and_no_others(cycle: str, beta: float) -> None:
    players = seeded_players(inference_players)
    before = {name: weights({name: player}) for name, player in players.items()}
    InferenceTurn(2, Information(beta), cycle)(players, (POINTS[:20],))
    moved = {name for name, player in players.items() if not torch.equal(weights({name: player}), before[name])}
    needed = {"inference", "discriminator"} | ({"statistics"} if beta else set())
    assert moved == needed | ({"cycle"} if cycle == "adversarial" else set())


def test_alice_with_squared_errors_learns_to_reconstruct() -> None:
    players = seeded_players(inference_players)
    encoder, decoder = players["inference"].models

    def error() -> float:
        with torch.no_grad():
            return float((decoder(encoder(POINTS)) - POINTS).norm(dim=1).mean())

    start = error()
    play(players, Minibatches((POINTS,), 50, 0), InferenceTurn(2, Information(0.0), "l2"), 150)
    assert error() < 0.5 * start


def test_packed_samples_are_further_channels() -> None:
    turn = GanTurn(2, 1, Information(0.0), packed=2)
    images = torch.arange(5 * 3 * 2 * 2.0).view(5, 3, 2, 2)
    packed = turn.pack(images)
    assert packed.shape == (2, 6, 2, 2)
    assert torch.equal(packed[1, :3], images[2]) and torch.equal(packed[1, 3:], images[3])


def test_images_come_to_28_pixels_in_the_unit_range() -> None:
    data = Dataset(3 + 5 * torch.rand(4, 1, 8, 8), torch.zeros(4, dtype=torch.long), "toy")
    images = in_unit_range(data)
    assert images.shape == (4, 1, 28, 28) and float(images.min()) == -1 and float(images.max()) == 1


def test_stacked_digits_are_three_of_the_set_and_their_mode_is_the_number_they_spell() -> None:
    digits = torch.arange(10.0).view(10, 1, 1, 1)
    images = stack(digits, 3000, Generator().manual_seed(0))
    assert images.shape == (3000, 3, 1, 1)

    class Reader(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.one_hot(x.flatten().long(), 10)

    found = stacked_coverage(Reader(), images)
    spelled = images.flatten(1).long() @ torch.tensor([100, 10, 1])
    assert found.modes == len(spelled.unique()) and found.histogram[spelled[0]] > 0
    assert stacked_coverage(Reader(), torch.full((5, 3, 1, 1), 7.0)).histogram[777] == 1


def test_the_toy_data_cover_all_modes_and_all_pieces_of_the_spiral() -> None:
    assert coverage("spiral", spiral(2500, Generator().manual_seed(0)).inputs).modes == 25
    assert coverage("gaussians", grid(5, 4.0)).modes == 25
    assert coverage("spiral", torch.zeros(10, 2)).modes == 1
