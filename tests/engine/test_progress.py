"""Progress: a listener in place of the bar hears every step, silence stays silent, and nothing stays changed."""

import pytest

from tangentlab.engine.progress_bar import progress_told_to, track


def test_a_listener_hears_every_step_instead_of_a_bar():
    heard = []
    with progress_told_to(lambda *step: heard.append(step)):
        assert list(track("abc", "letters", 3)) == ["a", "b", "c"]
        assert list(track("ab", "hidden", 2, progress=False)) == ["a", "b"]
    assert heard == [("letters", 0, 3), ("letters", 1, 3), ("letters", 2, 3)]
    assert list(track("ab", "after", 2)) == ["a", "b"] and len(heard) == 3


def test_a_listener_may_stop_the_loop_and_is_gone_afterwards():
    def stop(what, done, total):
        if done == 1:
            raise KeyboardInterrupt

    seen = []
    with pytest.raises(KeyboardInterrupt), progress_told_to(stop):
        seen.extend(track("abc", "letters", 3))
    assert list(track("abc", "letters", 3)) == ["a", "b", "c"]
