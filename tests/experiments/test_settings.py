"""Settings are checked against the fields of the experiment."""

from dataclasses import dataclass
from typing import Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tangentlab.bench.errors import SettingError
from tangentlab.bench.settings import parse_assignments
from tangentlab.experiments import find


@dataclass(frozen=True)
class Sample:
    width: int = 1
    rate: float = 0.1
    name: str = "a"
    flag: bool = False
    alphas: tuple[float, ...] = ()
    pair: tuple[int, str] = (1, "a")
    kind: Literal["wrong", "random"] = "wrong"
    limit: int | None = None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("width=8", {"width": 8}),
        ("rate=3", {"rate": 3.0}),
        ("rate=1e-3", {"rate": 0.001}),
        ("rate=.5", {"rate": 0.5}),
        ("name=word", {"name": "word"}),
        ("flag=true", {"flag": True}),
        ("alphas=[1, 100]", {"alphas": (1.0, 100.0)}),
        ("alphas=[]", {"alphas": ()}),
        ("pair=[3, x]", {"pair": (3, "x")}),
        ("kind=random", {"kind": "random"}),
        ("limit=null", {"limit": None}),
        ("limit=4", {"limit": 4}),
    ],
)
def test_a_setting_is_read_with_the_type_of_its_field(text: str, value: dict):
    read = parse_assignments(Sample, [text])
    assert read == value and [type(v) for v in read.values()] == [type(v) for v in value.values()]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("width=2.5", "not a whole number"),
        ("width=true", "not a whole number"),
        ("width=x", "not a whole number"),
        ("rate=fast", "not a number"),
        ("rate=true", "not a number"),
        ("flag=1", "truth value"),
        ("name=3", "not text"),
        ("alphas=3", r"not a list; write it as \[a, b, c\]"),
        ("alphas=[1, x]", "'x' is not a number"),
        ("pair=[1]", "1 entries, 2 are needed"),
        ("kind=randm", "did you mean 'random'"),
        ("limit=x", "neither a whole number nor null"),
        ("widht=3", "Unknown setting 'widht'; did you mean 'width'"),
        ("zzz=3", "settings: width, rate"),
        ("width", "key=value"),
        ("=3", "key=value"),
        ("width=[1", "not readable"),
    ],
)
def test_a_setting_that_does_not_fit_is_an_error_that_says_what_would(text: str, complaint: str):
    with pytest.raises(SettingError, match=complaint):
        parse_assignments(Sample, [text])


@given(st.builds(Sample, width=st.integers(), rate=st.floats(allow_nan=False), alphas=st.tuples(st.floats(0, 9))))
def test_every_value_survives_being_written_as_yaml_and_read_again(sample: Sample):
    def written(value: object) -> str:
        plain = list(value) if isinstance(value, tuple) else value
        return yaml.safe_dump(plain, default_flow_style=True).removesuffix("\n...\n")

    again = parse_assignments(Sample, [f"{key}={written(value)}" for key, value in vars(sample).items()])
    assert Sample(**again) == sample


def test_nothing_in_a_setting_is_executed():
    with pytest.raises(SettingError, match="not readable"):
        parse_assignments(Sample, ["name=!!python/object/apply:os.getcwd []"])


def test_an_unknown_scale_or_experiment_suggests_the_nearest():
    with pytest.raises(SettingError, match="did you mean 'smoke'"):
        find("toy-claims").at("smok")
    with pytest.raises(SettingError, match="did you mean 'toy-claims'"):
        find("toy-claim")
