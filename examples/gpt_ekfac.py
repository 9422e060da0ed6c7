"""A small GPT learns to write Python's documentation, character by character: EKFAC-ra against AdamW.

    python examples/gpt_ekfac.py
    python examples/gpt_ekfac.py --text my.txt --steps 1000 --width 128

The text is the licence, the Zen and the docstrings of Python's own standard library, so nothing is downloaded. Both
optimizers see the same batches in the same order. Their settings are the best of twelve each, by the validation loss after
150 steps: learning rate (0.001 to 0.03) and damping (0.1 to 0.001) for EKFAC-ra, learning rate (0.0003 to 0.01) and second
beta (0.95 to 0.999) for AdamW. docs/optimizers.md explains every choice and shows what came out.
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import importlib
import inspect
import io
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from tangentlab.models import GPT
from tangentlab.optim import NaturalSGD

MODULES = (
    "argparse asyncio bisect collections contextlib copy csv datetime decimal difflib email enum fractions functools "
    "heapq inspect itertools json logging math operator os pathlib pickle random re shutil sqlite3 statistics string "
    "subprocess tempfile textwrap threading time turtle types unittest urllib.request uuid weakref zipfile"
).split()


def python_text() -> str:
    """The Zen of Python and the docstrings of the standard library, every one once."""
    with contextlib.redirect_stdout(io.StringIO()):
        parts = [codecs.decode(importlib.import_module("this").s, "rot13")]
    for name in MODULES:
        module = importlib.import_module(name)
        members = [value for _, value in inspect.getmembers(module) if getattr(value, "__module__", None) == name]
        parts += [inspect.getdoc(member) or "" for member in (module, *members) if not isinstance(member, str)]
    return "\n\n".join(dict.fromkeys(part for part in parts if part.isascii()))


@dataclass
class Corpus:
    """Characters as numbers, the last tenth for validation."""

    text: str
    context: int
    letters: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.letters = sorted(set(self.text))
        place = {letter: index for index, letter in enumerate(self.letters)}
        codes = torch.tensor([place[letter] for letter in self.text])
        self.train, self.valid = codes[: -len(codes) // 10], codes[-len(codes) // 10 :]

    def batch(self, codes: Tensor, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Inputs and next characters, both (size, context)."""
        start = torch.randint(len(codes) - self.context - 1, (size, 1), generator=generator)
        window = codes[start + torch.arange(self.context + 1)]
        return window[:, :-1], window[:, 1:]


def token_loss(model: GPT, inputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy per character."""
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


@torch.no_grad()
def validation_loss(model: GPT, corpus: Corpus) -> float:
    """On the same 256 windows every time."""
    inputs, targets = corpus.batch(corpus.valid, 256, torch.Generator().manual_seed(1))
    return float(token_loss(model, inputs, targets))


@torch.no_grad()
def write(model: GPT, corpus: Corpus, length: int = 200) -> str:
    """A sample that continues a line break."""
    codes = torch.zeros((1, 1), dtype=torch.long)
    generator = torch.Generator().manual_seed(2)
    for _ in range(length):
        logits = model(codes[:, -corpus.context :])[0, -1]
        drawn = torch.multinomial((logits / 0.8).softmax(0), 1, generator=generator)
        codes = torch.cat([codes, drawn[None]], 1)
    return "".join(corpus.letters[code] for code in codes[0].tolist())


def train(name: str, optimizer: torch.optim.Optimizer, model: GPT, corpus: Corpus, steps: int, batch: int) -> float:
    """Train with a linear decay of the learning rate; prints losses and the time spent in updates alone."""
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, steps)
    order, seconds, recent = torch.Generator().manual_seed(0), 0.0, []
    for step in range(1, steps + 1):
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = token_loss(model, *corpus.batch(corpus.train, batch, order))
        loss.backward()
        optimizer.step()
        scheduler.step()
        seconds += time.perf_counter() - start
        recent.append(float(loss.detach()))
        if step % max(1, steps // 6) == 0:
            mean, recent = sum(recent) / len(recent), []
            print(
                f"  {name:9} step {step:5}  train {mean:.3f}  valid {validation_loss(model, corpus):.3f}  {seconds:6.1f} s"
            )
    return validation_loss(model, corpus)


def make_ekfac(model: GPT, lr: float, damping: float, period: int) -> torch.optim.Optimizer:
    """EKFAC-ra for every linear layer, embedding and norm of the model.

    pi balances the damping between inputs (large: summed over 64 characters) and output-gradients (tiny: the loss is a
    mean over characters); kl_clip bounds the change of the predicted distribution in one step.
    """
    settings = {"damping": damping, "period": period, "factor_decay": 0.5, "pi": True, "kl_clip": 1e-3}
    optimizer = NaturalSGD(model, lr=lr, momentum=0.9, preconditioner="ekfac-ra", **settings)
    print(optimizer.preconditioner.report(), "\n")
    return optimizer


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="a text file; by default Python's own documentation")
    for name, default in (("steps", 300), ("batch", 32), ("context", 64), ("width", 64), ("layers", 2), ("period", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("lr", 0.03), ("damping", 1e-2), ("adamw-lr", 3e-3)):
        parser.add_argument(f"--{name}", type=float, default=default)
    return parser.parse_args()


def main() -> None:
    """Train with both, one after the other, from the same weights."""
    options = arguments()
    text = options.text.read_text() if options.text else python_text()
    corpus = Corpus(text, options.context)
    print(f"{len(corpus.text):,} characters, {len(corpus.letters)} different ones\n")
    makers: dict[str, Callable[[GPT], torch.optim.Optimizer]] = {
        "EKFAC-ra": lambda model: make_ekfac(model, options.lr, options.damping, options.period),
        "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=options.adamw_lr, betas=(0.9, 0.95)),
    }
    for name, make in makers.items():
        torch.manual_seed(0)
        model = GPT(len(corpus.letters), options.context, options.layers, n_heads=4, width=options.width)
        train(name, make(model), model, corpus, options.steps, options.batch)
        print(f"\n{name} writes:\n{write(model, corpus)}\n")


if __name__ == "__main__":
    main()
