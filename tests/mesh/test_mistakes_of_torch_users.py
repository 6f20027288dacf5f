"""What users of torch try first, with torch itself: each is an error of ours that says what to write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mesh
import mesh.numpy as mnp
from mesh import DistributedTrainer
from mesh.errors import InputError

torch = pytest.importorskip("torch", reason="torch is not installed (the extra `torch`)")

X = np.ones((4, 8), np.float32)
ROWS = torch.ones(4, 8)
pytestmark = pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
MODULE = torch.nn.Linear(8, 2)
IMPORTED = r"mesh\.from_torch\(module\.eval\(\), x\)"


def loss(params: Any, x: Any, y: Any) -> Any:
    return (x @ params["w"] - y)[:, 0] ** 2


@pytest.mark.parametrize(
    "computed",
    [
        lambda x: MODULE(x),
        torch.tanh,
        lambda x: torch.nn.functional.relu(x),
        lambda x: torch.nn.functional.mse_loss(x, ROWS),
        lambda x: x + ROWS,
        lambda x: ROWS + x,
        lambda x: ROWS @ x.T,
    ],
)
def test_a_function_of_torch_says_what_to_write(computed: Callable[[Any], Any]) -> None:
    with pytest.raises(InputError, match=rf"of torch takes tensors, and was given an array of mesh.*{IMPORTED}"):
        mesh.trace(computed, X)
    with pytest.raises(InputError, match="of torch takes tensors"):
        computed(mnp.asarray(X))


def test_torch_takes_the_values_of_arrays() -> None:
    made = mnp.asarray(X) * 2
    for taken in (torch.as_tensor(made), torch.tensor(made), torch.from_numpy(np.asarray(made))):
        assert torch.equal(taken, 2 * ROWS)


@pytest.mark.parametrize(
    ("params", "said"),
    [
        (MODULE, "the params are a Linear, not an array"),
        (MODULE.parameters(), "the params are a generator, not an array"),
        ({"w": MODULE}, "param 'w' is a Linear, not an array"),
        (dict(MODULE.named_parameters()), "param '(weight|bias)' is a Parameter that does not become a numpy array"),
        ([*MODULE.parameters()], "param '0' is a Parameter that does not become a numpy array"),
    ],
)
def test_params_of_a_module_are_those_of_its_model(params: Any, said: str) -> None:
    with pytest.raises(InputError, match=f"{said}.*{IMPORTED}.*model.params"):
        DistributedTrainer(loss, params).fit((X, X[:, :1]))


def test_an_optimiser_of_torch_is_one_line_of_an_error() -> None:
    with pytest.raises(InputError, match=r"^Adam \( Parameter Group 0 .*\.\.\. is no optimiser") as refused:
        DistributedTrainer(loss, {"w": X[0]}, optimizer=torch.optim.Adam(MODULE.parameters()))
    assert "\n" not in str(refused.value)


def test_a_dataset_goes_through_a_loader() -> None:
    data = torch.utils.data.TensorDataset(ROWS, torch.ones(4, 1))
    with pytest.raises(InputError, match=r"TensorDataset is no data.*such as a DataLoader"):
        DistributedTrainer(loss, {"w": X[0]}).fit(data)


def test_modules_and_pickles_are_no_models(tmp_path: Path) -> None:
    torch.save(MODULE.state_dict(), tmp_path / "weights.pt")
    with pytest.raises(InputError, match=rf"weights\.pt is a pickle, which can run code.*safetensors.*{IMPORTED}"):
        mesh.load(tmp_path / "weights.pt")
    with pytest.raises(InputError, match=rf"class Linear.*{IMPORTED}"):
        mesh.load(MODULE)
    with mesh.Mesh.builder().build() as m, pytest.raises(InputError, match=rf"is a Linear, not an array.*{IMPORTED}"):
        m.put(MODULE)
