"""One thread at a time.

A measured forward or backward works on copies of the model's buffers, with hooks on its layers and with the random state and
some switches of torch set for a moment. All of these belong to the process, so threads take turns: whoever finds another one
at work waits for it. A turn lasts one pass, not one call, and may be taken again by the thread that has it.
"""

from __future__ import annotations

from threading import RLock

TURN = RLock()
