"""What the circuit does where nothing was swapped is not simulated."""

from __future__ import annotations

from rebinding.experiments.simulation import leave_out
from rebinding.experiments.static.request import OtherStories

leave_out(OtherStories, "ours; the paper says nothing of the circuit on stories without its swap")
