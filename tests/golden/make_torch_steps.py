"""Records where torch.optim's optimisers lead, step by step, in tests/golden/torch_steps.npz.

    PYTHONPATH=tests python tests/golden/make_torch_steps.py     # in an environment with torch and numpy

The recorded file came from torch 2.13.0 on a CPU, in float64.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from support.cases.optim_cases import CASES, STEPS, OptimCase, first_params, pull, row

OPTIMISERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
CLIPS = {"norm": torch.nn.utils.clip_grad_norm_, "value": torch.nn.utils.clip_grad_value_}


def options(case: OptimCase) -> dict:
    given = dict(case.options)
    betas = {"betas": (given.pop("b1"), given.pop("b2"))} if "b1" in given else {}
    return {"lr": given.pop("learning_rate"), **betas, **given}


def steps(case: OptimCase) -> np.ndarray:
    params = {name: torch.from_numpy(value).double().requires_grad_() for name, value in first_params().items()}
    optimiser, rows = OPTIMISERS[case.optimiser](params.values(), **options(case)), []
    for step in range(STEPS):
        noise = pull(step)
        for name, param in params.items():
            param.grad = torch.from_numpy(noise[name]).double() + torch.sin(param.detach())
        if case.clip:
            CLIPS[case.clip[0]](params.values(), case.clip[1])
        optimiser.step()
        rows.append(row({name: param.detach().numpy() for name, param in params.items()}))
    return np.stack(rows)


if __name__ == "__main__":
    file = Path(__file__).with_name("torch_steps.npz")
    np.savez_compressed(file, **{case.label: steps(case) for case in CASES if "torch" in case.oracles})
    print(file, "of torch", torch.__version__)
