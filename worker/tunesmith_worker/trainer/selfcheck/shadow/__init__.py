"""Shadow of an attempt's first optimizer step: the same step in plain torch on the stock modules.

Start reading at `callback.FirstStepShadow`. `supervised.py` and `reinforcement.py` compute the
expected step of their kind of run. `update.py` checks the change of the weights for every method.
"""

from .callback import FirstStepShadow
from .reinforcement import ReinforcementStep
from .relook import RunningLook
from .supervised import SupervisedStep

__all__ = ["FirstStepShadow", "ReinforcementStep", "RunningLook", "SupervisedStep"]
