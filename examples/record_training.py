"""A small network learns handwritten digits, some with wrong labels, and a recorder watches its tangent kernel.

    python examples/record_training.py
    python examples/record_training.py --noise 0 --steps 2000 --folder runs/clean
    python examples/record_training.py --size 100 10

MNIST is read from $TANGENTLAB_DATA; without it the 8 x 8 digits that come with scikit-learn stand in, so nothing is
downloaded. Labels of a part of the training images are replaced by random ones (--noise, one half by default). Watch how the
kernel aligns with the labels of test images, which are all right, before it aligns with those of training images, half of
which are wrong: the network learns what is true first. docs/recorder.md explains every number.

Result: a folder with ``recording.jsonl`` and ``report.html``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

from tangentlab.data import load
from tangentlab.errors import DataFileError
from tangentlab.recorder import TangentRecorder

Images = tuple[Tensor, Tensor]


def images(count: int) -> tuple[Images, Images]:
    """Training and test images, standardized: MNIST, or digits where it is absent."""
    try:
        train, test = (load("mnist", split, download=False).first(n) for split, n in (("train", count), ("test", 1000)))
    except DataFileError:
        train, test = load("digits"), load("digits", "test")
    mean, spread = train.inputs.mean(), train.inputs.std()
    return ((train.inputs - mean) / spread, train.targets), ((test.inputs - mean) / spread, test.targets)


def with_noise(data: Images, share: float, generator: torch.Generator) -> Images:
    """The same images, a share of the labels drawn anew from all classes."""
    inputs, labels = data
    wrong = torch.rand(len(labels), generator=generator) < share
    return inputs, torch.where(wrong, torch.randint(0, 10, labels.shape, generator=generator), labels)


def network(pixels: int, width: int) -> nn.Module:
    """Four layers of ReLUs."""
    sizes = [pixels, width, width, width, width]
    layers = [part for a, b in zip(sizes, sizes[1:], strict=False) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(width, 10))


def train(model: nn.Module, data: Images, recorder: TangentRecorder, options: argparse.Namespace) -> None:
    """SGD with momentum; the recorder is told after every update."""
    inputs, labels = data
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    with recorder:
        for _ in range(options.steps):
            batch = torch.randint(0, len(inputs), (options.batch,))
            loss = nn.functional.cross_entropy(model(inputs[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step(loss=loss)


def tell(recorder: TangentRecorder) -> None:
    """A few numbers of every snapshot, and where the page is."""
    columns = ("accuracy", "cka", "effective_rank")
    print(f"{'step':>6}  " + "  ".join(f"{probe + ' ' + name:>20}" for name in columns for probe in ("train", "test")))
    for row in recorder.snapshots:
        values = (row["values"][f"{probe}/{name}"] for name in columns for probe in ("train", "test"))
        print(f"{row['step']:>6}  " + "  ".join(f"{value:20.3f}" for value in values))
    print(f"the recorder took {recorder.overhead:.1%} of the training time; open {recorder.report()}")


def main(arguments: list[str] | None = None) -> TangentRecorder:
    """Parse, train, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--noise", type=float, default=0.5, help="share of training labels drawn at random")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--images", type=int, default=5000, help="training images")
    parser.add_argument("--width", type=int, default=100)
    parser.add_argument("--lr", type=float, default=0.03)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--size", type=int, nargs=2, metavar=("EXAMPLES", "OUTPUTS"), help="of a probe; e.g. 100 10")
    parser.add_argument("--folder", type=Path, default=Path("runs/record_training"))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    torch.manual_seed(options.seed)
    clean, test = images(options.images)
    noisy = with_noise(clean, options.noise, torch.Generator().manual_seed(options.seed))
    model = network(clean[0][0].numel(), options.width)
    recorder = TangentRecorder(
        model,
        {"train": noisy, "test": test},
        size=tuple(options.size) if options.size else None,
        total_steps=options.steps,
        folder=options.folder,
    )
    train(model, noisy, recorder, options)
    tell(recorder)
    return recorder


if __name__ == "__main__":
    main()
