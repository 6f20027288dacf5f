"""mesh.from_torch: exported modules compute what torch computes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mesh
from mesh import Mesh
from mesh.errors import InputError, Unsupported

torch = pytest.importorskip("torch", reason="torch is not installed (the extra `torch`)")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

torch.manual_seed(0)
IMAGE = torch.randn(2, 3, 16, 16)
ROWS = torch.randn(4, 10)
PLACES = torch.tensor([[1, 2], [3, 4], [0, 9], [5, 5]])


class Program(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


REGULAR = torch.randn(4, 4) + 3 * torch.eye(4)
DEFINITE = REGULAR @ REGULAR.T
STACK = torch.randn(2, 5, 3)


def without_signs(function: Callable[..., Any]) -> Callable[..., Any]:
    """The magnitudes of what has open signs."""
    return lambda x: [part.abs() for part in function(x)]


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "elementwise": (
        lambda x: [
            x.sin(), x.tan(), x.exp(), x.abs().log(), x.abs().rsqrt(), x.tanh(), x.sigmoid(), x.erf(), x.erfc(),
            x.floor(), x.ceil(), x.round(), x.trunc(), x.sign(), x.clamp(-0.5, 0.5), x.clamp(min=0.1), x.pow(3), 2**x,
            x.abs().pow(1.5), x.reciprocal(), x.expm1(), x.atan(), x * 2 + 1 - x / 3, 1 - x, x.fmod(0.7), x % 0.7,
            x // 0.7, torch.div(x, 0.7, rounding_mode="trunc"), torch.maximum(x, -x), torch.atan2(x, x + 1), x > 0,
            x.isnan(), ~(x > 0), torch.where(x > 0, x, -x), x.masked_fill(x > 1, 0.0), x.int() // 3, x.int() % 3,
            x.double(), x.half(), x.bool(), (x > 0) & (x < 1), torch.add(x, x, alpha=2), x.square(), x.neg(),
        ],
        (ROWS,),
    ),
    "overloads of one name": (
        lambda x: [
            torch.max(x, -x), torch.min(x, x.flip(0)), x.view(torch.int32), x.scatter(1, PLACES, x, reduce="add"),
            x.scatter_reduce(1, PLACES, x, "amax", include_self=False), x.scatter_reduce(1, PLACES, x, "mean"),
            x.scatter_reduce(1, PLACES, x, "sum", include_self=False), x.scatter_reduce(1, PLACES, x, "amin"),
            x.scatter_reduce(1, PLACES, x, "mean", include_self=False), torch.gather(x, 0, PLACES[:2] % 4),
            x.index_put((x > 0,), torch.tensor(5.0), accumulate=True), x[0, 0].softmax(0), torch.hypot(x, x + 1),
            torch.copysign(x, -x), x.int() << 1, functional.pad(x[None], (1, 2), mode="circular"),
            x.index_put((torch.tensor([True, False, True, False]),), x[1]),
        ],
        (ROWS,),
    ),
    "resized by a factor": (
        lambda x: [
            functional.interpolate(x[:, :, :7, :6], scale_factor=factor, mode=mode, **more)
            for factor in (1.7, 0.6, (1.3, 2.4))
            for mode, more in (
                ("nearest", {}), ("bilinear", {}), ("bilinear", {"align_corners": True}),
                ("bilinear", {"recompute_scale_factor": True}),
            )
        ] + [functional.interpolate(x[0, :, :7], scale_factor=1.7)],
        (IMAGE,),
    ),
    "a sum that counts for nothing": (
        lambda x, y: [torch.addmm(y, x, x, beta=0), torch.baddbmm(y[None], x[None], x[None], beta=0, alpha=2)],
        (REGULAR, torch.full((4, 4), float("nan"))),
    ),
    "attention to nothing": (
        lambda x, seen: [
            functional.scaled_dot_product_attention(x, x, x, mask)
            for mask in (seen, torch.where(seen, 0.0, float("-inf")))
        ],
        (torch.randn(2, 3, 5, 4), torch.tensor([[True] * 5, [False] * 5, [False, True] * 2 + [False]] * 2)[:5]),
    ),
    "no numbers, and one": (
        lambda x: [x.sign(), *x.median(1), *x.median(0, keepdim=True), x.median(), x[0, 0].sum(0), x[0, 0].mean(-1)],
        (torch.tensor([[1.0, float("nan"), 3.0, -2.0], [float("inf"), -1.0, float("-inf"), 0.0]]),),
    ),
    "norms in other dtypes": (
        lambda x: [torch.linalg.vector_norm(x, order, 1, dtype=torch.float64) for order in (2, 3, 0, float("inf"))],
        (ROWS,),
    ),
    "activations": (
        lambda x: [
            functional.relu(x), functional.gelu(x), functional.gelu(x, approximate="tanh"), functional.silu(x),
            functional.mish(x), functional.softplus(x), functional.elu(x), functional.selu(x),
            functional.hardswish(x),
            functional.hardsigmoid(x), functional.hardtanh(x), functional.leaky_relu(x), functional.softmax(x, -1),
            functional.log_softmax(x, 0), functional.glu(x), functional.relu6(x), functional.logsigmoid(x),
            functional.celu(x), functional.softsign(x),
        ],
        (ROWS,),
    ),
    "matrices": (
        lambda a, b, s: [
            torch.linalg.solve(a, b), torch.linalg.solve(a, b[:, 0]), torch.linalg.solve(a, b.T, left=False),
            torch.linalg.inv(a), torch.inverse(a), torch.linalg.det(a), torch.det(a), *torch.linalg.slogdet(a),
            torch.logdet(s), torch.linalg.cholesky(s), torch.linalg.cholesky(s, upper=True),
            torch.cholesky_solve(b, torch.linalg.cholesky(s)), torch.cholesky_inverse(torch.linalg.cholesky(s)),
            torch.linalg.solve(torch.stack([a, s]), torch.stack([b[:, 0], b[:, 1]])), *torch.linalg.lu_factor(a),
            *[torch.linalg.solve_triangular(a, b if left else b.T, upper=upper, left=left, unitriangular=unit)
              for upper in (True, False) for left in (True, False) for unit in (True, False)],
            *[torch.triangular_solve(b, a, upper=upper, transpose=turned).solution
              for upper in (True, False) for turned in (True, False)],
            torch.linalg.matrix_power(a, -2), torch.linalg.multi_dot([a, a, b]), torch.linalg.cond(a),
            torch.linalg.eigvalsh(s), torch.linalg.eigvalsh(s, UPLO="U"),
        ],
        (REGULAR, torch.randn(4, 2), DEFINITE),
    ),
    "factors": (
        lambda x: [
            torch.linalg.svdvals(x), torch.linalg.pinv(x), torch.linalg.matrix_norm(x, "nuc"),
            torch.linalg.matrix_norm(x, 2), torch.linalg.matrix_rank(x), torch.linalg.qr(x, mode="r").R.abs(),
            *without_signs(torch.linalg.qr)(x), *without_signs(lambda x: torch.linalg.svd(x, full_matrices=False))(x),
            *without_signs(torch.linalg.eigh)(x.mT @ x),
        ],
        (STACK,),
    ),
    "shapes": (
        lambda x: [
            x.view(2, -1), x.flatten(1), x.permute(0, 2, 3, 1), x.transpose(1, 2), x[:, :, ::2, 1:-1], x[0], x[...,
            -1],
            torch.cat([x, x], 1), torch.stack([x, x]), x.chunk(3, 1)[1], x.split([1, 2], 1)[0], x.unbind(1)[2],
            x.repeat(1, 2, 1, 1), x.expand(2, 3, 16, 16), x.unsqueeze(1).squeeze(1), x.flip(1), x.roll(2, 3),
            functional.pad(x, (1, 2)), functional.pad(x, (-1, 2, 0, 3), value=2.0), x.new_zeros(3),
            torch.full((2,), 3.0),
            torch.arange(2, 11, 3), torch.zeros_like(x), x.diagonal(0, 2, 3), torch.tril(x), torch.triu(x, 1), x.mT,
            torch.eye(3), torch.linspace(0, 1, 5), x.movedim(1, -1), x.narrow(2, 3, 4), x.unfold(3, 4, 2),
        ],
        (IMAGE,),
    ),
    "reductions": (
        lambda x: [
            x.sum(), x.sum(1), x.mean(0, keepdim=True), x.prod(1), x.amax(0), x.amin((0, 1)), x.max(1), x.min(0),
            x.max(),
            x.argmax(1), x.argmin(), x.std(1), x.var(0, correction=0), x.norm(), torch.linalg.vector_norm(x, 1, 1),
            torch.linalg.vector_norm(x, torch.inf), x.cumsum(1), x.cumprod(0), x.logsumexp(1), (x > 0).any(1),
            (x > 9).all(),
            torch.var_mean(x, 1), x.median(), x.int().sum(1), x.sort(1), x.sort(0, descending=True), x.topk(3),
            x.topk(2, largest=False), x.argsort(), (x > 0).sum(), x.aminmax(),
        ],
        (ROWS,),
    ),
    "indexing": (
        lambda x, i: [
            torch.gather(x, 1, i), x.index_select(1, i[0]), x[:, i[0]], x[i[:, 0] % 4, i[:, 1]], x.scatter_add(1,
            i, x[:, :2]),
            x.scatter(1, i, 5.0), functional.embedding(i, x.T.contiguous()), functional.one_hot(i, 12),
            torch.index_put(x, (i[:, 0] % 4, i[:, 1]), torch.ones(4)), x.index_add(1, i[0], x[:, :2]),
            x.take_along_dim(i, 1),
        ],
        (ROWS, PLACES),
    ),
    "products": (
        lambda x: [
            x @ x.T, torch.einsum("ij,kj->ik", x, x), torch.bmm(x[None], x.T[None]), torch.outer(x[0], x[1]),
            x @ x[0],
            torch.addmm(x @ x.T, x, x.T, alpha=2), functional.linear(x, x), torch.dot(x[0], x[1]),
            torch.tensordot(x, x, ([1], [1])),
            torch.baddbmm((x @ x.T)[None], x[None], x.T[None], beta=0.5), functional.cosine_similarity(x, x + 1),
        ],
        (ROWS,),
    ),
    "images": (
        lambda x: [
            functional.avg_pool2d(x, 3, 2, 1), functional.max_pool2d(x, 3, 2, 1), functional.adaptive_avg_pool2d(x,
            5),
            functional.interpolate(x, scale_factor=2), functional.interpolate(x, size=(7, 20), mode="bilinear"),
            functional.interpolate(x, size=(7, 20), mode="bilinear", align_corners=True), functional.group_norm(x, 3),
            functional.conv_transpose2d(x, torch.ones(3, 4, 2, 2) / 3, stride=2, output_padding=1),
            functional.instance_norm(x), functional.max_pool2d(x, 2, ceil_mode=True), functional.pixel_shuffle(x[:,
            :1].expand(2, 4, 16, 16), 2),
            functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False), functional.normalize(x),
        ],
        (IMAGE,),
    ),
    "attention": (
        lambda x: [
            functional.scaled_dot_product_attention(x, x, x), functional.scaled_dot_product_attention(x, x, x,
            is_causal=True),
            functional.scaled_dot_product_attention(x, x, x, attn_mask=x[:, :, :1] > 0),
        ],
        (IMAGE,),
    ),
    "losses": (
        lambda x, i: [
            functional.cross_entropy(x, i[:, 0]), functional.mse_loss(x, x * 2), functional.nll_loss(x, i[:, 1]),
            functional.binary_cross_entropy_with_logits(x, (x > 0).float()), functional.smooth_l1_loss(x, x * 3),
            functional.cross_entropy(x, i[:, 0], reduction="sum"), functional.kl_div(x, x.softmax(1)),
        ],
        (ROWS, PLACES),
    ),
}  # fmt: skip

MODULES: dict[str, tuple[Callable[[], Any], tuple[Any, ...]]] = {
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.5),
            nn.Conv2d(8, 8, 3, groups=4, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
        ),
        (IMAGE,),
    ),
    "one dimension": (
        lambda: nn.Sequential(nn.Conv1d(4, 6, 3, dilation=2), nn.ConvTranspose1d(6, 2, 4, stride=3)),
        (torch.randn(2, 4, 12),),
    ),
    "encoder": (lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), (torch.randn(2, 5, 16),)),
    "decoder": (
        lambda: nn.TransformerDecoderLayer(16, 2, 32, batch_first=True, norm_first=True, activation="gelu"),
        (torch.randn(2, 5, 16), torch.randn(2, 3, 16)),
    ),
    "lstm": (lambda: nn.LSTM(8, 6, 2, batch_first=True, bidirectional=True), (torch.randn(2, 4, 8),)),
    "gru": (lambda: nn.GRU(8, 6), (torch.randn(4, 2, 8),)),
    "embedding": (lambda: nn.Sequential(nn.Embedding(10, 6), nn.LayerNorm(6), nn.RMSNorm(6)), (PLACES,)),
}  # fmt: skip


def imported(module: Any, args: tuple[Any, ...]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own
        return mesh.from_torch(module.eval(), *args)


def leaves(value: Any) -> list[Any]:
    return torch.utils._pytree.tree_leaves(value)


def assert_same(found: Any, wanted: Any, tolerance: float = 1e-5) -> None:
    found = list(found.values()) if isinstance(found, dict) else [found]
    wanted = leaves(wanted)
    assert len(found) == len(wanted)
    for got, expected in zip(map(np.asarray, found), (each.detach().numpy() for each in wanted), strict=True):
        assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_computes_what_torch_computes(name: str) -> None:
    function, args = PROGRAMS[name]
    model = imported(Program(function), args)
    assert_same(model(*[each.numpy() for each in args]), function(*args), 1e-4 if name == "images" else 1e-5)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_halves_have_room_for_squares(kind: Any) -> None:
    made = torch.Generator().manual_seed(0)
    x = (torch.randn(3, 4, 8, generator=made) * 1000).to(kind)
    program = Program(
        lambda x: [
            torch.linalg.vector_norm(x[:, 0], dim=1), torch.linalg.vector_norm(x[:, 0], 3, dim=1), x.std(-1),
            functional.normalize(x, dim=-1), functional.cosine_similarity(x[0], x[1], dim=-1),
            functional.rms_norm(x, (8,)), functional.rms_norm(x / 1e6, (8,)), functional.layer_norm(x, (8,)),
            functional.layer_norm(x, (4, 8), torch.ones(4, 8).to(kind), torch.ones(4, 8).to(kind)),
            functional.instance_norm(x), x * 1e-9, 1 - x / 1e6, x * torch.tensor(1e-8),
        ]
    )  # fmt: skip
    model = imported(program, (x,))
    found = model(x.view(torch.int16).numpy().view(model.inputs[0].dtype.numpy))
    for got, expected in zip(found.values(), program(x), strict=True):
        assert str(expected.dtype) == f"torch.{np.asarray(got).dtype}"
        close = 2 * torch.finfo(kind).eps
        np.testing.assert_allclose(np.asarray(got, np.float64), expected.double(), rtol=close, atol=close)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_computes_what_torch_computes(name: str) -> None:
    make, args = MODULES[name]
    module = make()
    model = imported(module, args)
    with torch.no_grad():
        assert_same(model(*[each.numpy() for each in args]), module(*args))
    assert {*model.params, *model.buffers} == set(module.state_dict())
    assert set(model.params) == {name for name, _ in module.named_parameters()}


def test_a_module_over_three_workers_keeps_its_names() -> None:
    make, args = MODULES["encoder"]
    module = make()
    model = imported(module, args)
    assert [spec.name for spec in model.inputs] == ["src"] and model.outputs == ("output",)
    with Mesh.builder().mesh("torch").local(3).build() as workers, torch.no_grad():
        assert_same(workers.run(model, args[0].numpy(), strategy="pipeline"), module(*args))
        assert len(workers.report().workers) == 3


def test_weights_share_the_modules_memory() -> None:
    module = nn.Linear(3, 4)
    model = imported(module, (torch.ones(2, 3),))
    assert np.shares_memory(model.params["weight"], module.weight.detach().numpy())


TRANSFORMERS = {
    "BertModel": ("BertConfig", {}),
    "DistilBertModel": ("DistilBertConfig", {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 40}),
    "GPT2LMHeadModel": ("GPT2Config", {"n_embd": 32, "n_layer": 2, "n_head": 4}),
    "LlamaForCausalLM": ("LlamaConfig", {"num_key_value_heads": 2}),
    "Qwen2ForCausalLM": ("Qwen2Config", {"num_key_value_heads": 2}),
    "T5EncoderModel": ("T5Config", {"d_model": 32, "d_kv": 8, "num_heads": 4, "num_layers": 2, "d_ff": 40}),
    "ViTForImageClassification": ("ViTConfig", {"image_size": 16, "patch_size": 4}),
}


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_an_exported_transformer_equals_torch(name: str) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    common = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
    config, settings = TRANSFORMERS[name]
    known = getattr(transformers, config)
    words = {} if "ViT" in name else {"vocab_size": 50}
    plain = {} if {"dim", "n_embd", "d_model"} & settings.keys() else common
    torch.manual_seed(1)
    module = getattr(transformers, name)(known(**plain, **words, **settings))
    given = IMAGE if "ViT" in name else torch.randint(2, 50, (2, 7))
    if hasattr(module.config, "use_cache"):
        module.config.use_cache = False
    model = imported(module, (given,))
    with torch.no_grad():
        wanted = module(given)
    found = model(given.numpy())
    found = found if isinstance(found, dict) else {model.outputs[0]: found}
    for key in ("logits", "last_hidden_state"):
        if key in wanted:
            np.testing.assert_allclose(np.asarray(found[key]), wanted[key].numpy(), rtol=1e-4, atol=1e-4)


# -- what is not known


def test_everything_that_is_not_known_is_listed_at_once() -> None:
    with pytest.raises(Unsupported, match=r"Program uses aten\.\w+.*, aten\."):
        imported(Program(lambda x: torch.special.i1(x) + torch.special.i0(x).sum() + torch.lgamma(x).sum()), (ROWS,))


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: x.scatter(1, PLACES, x, reduce="multiply"), "the reduction 'multiply'"),
        (lambda x: x.index_put((x[:, 0] > 0,), x[:2]), "under a mask to values of their own"),
        (lambda x: x.view(torch.int16), "a view of f32 as i16"),
        (lambda x: functional.max_pool1d(x[None], 2, return_indices=True), r"uses a max-pool's indices \(return_ind"),
    ],
)
def test_what_an_overload_does_not_do_is_named(function: Callable[..., Any], said: str) -> None:
    with pytest.raises(Unsupported, match=said):
        imported(Program(function), (ROWS,))(ROWS.numpy())


def test_numbers_among_the_examples_are_fixed_and_results_that_are_none_fall_away() -> None:
    model = imported(Program(lambda x, by: (x * by, None, x + 1)), (ROWS.numpy(), 3))
    assert [spec.name for spec in model.inputs] == [model.inputs[0].name] and len(model.outputs) == 2
    first, second = model(ROWS.numpy()).values()
    np.testing.assert_allclose(np.asarray(first), ROWS.numpy() * 3)
    np.testing.assert_allclose(np.asarray(second), ROWS.numpy() + 1)


def test_a_module_that_learns_is_told_to_stop() -> None:
    module = nn.BatchNorm1d(10).train()
    with pytest.raises(InputError, match=r"changes its buffer 'running_mean'.*eval\(\)"):
        mesh.from_torch(module, ROWS)


def test_a_module_that_cannot_be_exported_says_why() -> None:
    with pytest.raises(InputError, match=r"torch\.export cannot export Program"):
        imported(Program(lambda x: x if x.sum().item() > 0 else -x), (ROWS,))


# -- what is trained, and what is not


class Norms(nn.Module):
    """With statistics, a constant, a frozen layer, and a buffer that no state_dict has."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.norm, self.frozen = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2).requires_grad_(False)
        self.register_buffer("scale", torch.tensor([2.0, 3.0]), persistent=False)
        self.norm.running_mean.uniform_(-1, 1)
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x: Any) -> Any:
        return self.frozen(self.norm(self.before(x))) * self.scale


def test_statistics_and_frozen_weights_are_buffers_that_training_leaves() -> None:
    module, x = Norms().eval(), torch.randn(5, 3)
    model = imported(module, (x,))
    assert set(model.params) == {"before.weight", "before.bias", "norm.weight", "norm.bias"}
    assert {"norm.running_mean", "norm.running_var", "frozen.weight", "frozen.bias", "scale"} <= set(model.buffers)
    module(x).square().sum().backward()
    value = mesh.grad(lambda params: (model.apply(params, x.numpy()) ** 2).sum())(dict(model.params))
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            np.testing.assert_allclose(np.asarray(value[name]), parameter.grad.numpy(), rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match=r"' is a buffer of Norms, and no param"):
        model.apply(model.weights, x.numpy())


def test_a_module_with_statistics_is_trained_by_the_trainer() -> None:
    module, x = Norms().eval(), np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    model = imported(module, (torch.from_numpy(x),))

    def loss(params: Any, batch: Any) -> Any:
        return (model.apply(params, batch) ** 2).mean()

    trainer = mesh.DistributedTrainer(loss, dict(model.params), optimizer=mesh.optim.sgd(0.1))
    before = float(loss(model.params, x))
    trainer.fit(x, epochs=3, batch_size=8)
    better = model.trained(trainer.params)
    assert float((better(x) ** 2).mean()) < before
    assert all(np.array_equal(better.buffers[name], model.buffers[name]) for name in model.buffers)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.e, self.d = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.d.weight = self.e.weight

    def forward(self, ids: Any) -> Any:
        return self.d(self.e(ids))


def test_tied_weights_are_one_param_by_two_names() -> None:
    module, ids = Tied().eval(), torch.tensor([0, 2, 4])
    model = imported(module, (ids,))
    assert list(model.params) == ["e.weight"] and model.tied == {"d.weight": "e.weight"}
    module(ids).square().sum().backward()
    slope = mesh.grad(lambda params: (model.apply(params, ids.numpy()) ** 2).sum())(dict(model.params))
    np.testing.assert_allclose(np.asarray(slope["e.weight"]), module.e.weight.grad.numpy(), rtol=1e-4, atol=1e-5)
    doubled = model.trained({"e.weight": model.params["e.weight"] * 2})
    np.testing.assert_allclose(np.asarray(doubled(ids.numpy())), 4 * module(ids).detach().numpy(), rtol=1e-5)
    with pytest.raises(InputError, match=r"'d.weight' is the same weight as 'e.weight'"):
        model.apply({**model.params, "d.weight": model.params["e.weight"]}, ids.numpy())


# -- free dimensions, and names of what is nested


class Free(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Any, y: Any) -> Any:
        rows = x.shape[0]
        return self.layer(x).reshape(rows * 3) + y.reshape(-1), x.reshape(2, -1), torch.arange(rows) / (rows + 1)


@pytest.mark.parametrize("even", [False, True])
def test_a_dimension_that_was_exported_free_stays_free(even: bool) -> None:
    dim = torch.export.Dim("half", max=8) * 2 if even else torch.export.Dim.AUTO
    module = Free().eval()
    args = torch.randn(4, 4), torch.randn(4, 3)
    program = torch.export.export(module, args, dynamic_shapes={"x": {0: dim}, "y": {0: dim}})
    model = mesh.from_torch(program)
    assert [spec.shape for spec in model.inputs] == [("x.0", 4), ("x.0", 3)]
    for rows in (4, 6, 14):
        x, y = torch.randn(rows, 4), torch.randn(rows, 3)
        assert_same(model(x.numpy(), y.numpy()), module(x, y))
    if even:
        with pytest.raises(InputError, match=r"'x' is 7 long along axis 0, and .* exported for lengths of"):
            model(np.ones((7, 4), np.float32), np.ones((7, 3), np.float32))
        with pytest.raises(InputError, match=r"'x' is 40 long along axis 0, and the program was exported for 0 to 16"):
            model(np.ones((40, 4), np.float32), np.ones((40, 3), np.float32))


def test_other_sizes_than_the_examples_are_refused_with_the_reason() -> None:
    model = imported(nn.Linear(3, 4), (torch.ones(2, 3),))
    with pytest.raises(InputError, match=r"f32\[5, 3\], expected f32\[2,3\].*sizes of its examples.*dynamic_shapes"):
        model(np.ones((5, 3), np.float32))


def test_what_is_nested_is_named_by_its_path() -> None:
    def function(d: Any) -> Any:
        return {"sum": d["k"] + d["more"][0], "pair": (d["k"], {"last": d["more"][0]}), "one": [d["k"] * 2]}

    class Nested(nn.Module):
        def forward(self, d: Any) -> Any:
            return function(d)

    args = {"k": torch.ones(2), "more": [torch.ones(2) * 3]}
    model = imported(Nested(), (args,))
    assert set(model.outputs) == {"sum", "pair.0", "pair.1.last", "one.0"}
    assert [spec.name for spec in model.inputs] == ["d_k", "d_more_0"]
    found = model(d_k=np.ones(2, np.float32), d_more_0=np.full(2, 3, np.float32))
    assert np.asarray(found["sum"]).tolist() == [4, 4] and np.asarray(found["pair.1.last"]).tolist() == [3, 3]
    with pytest.raises(InputError, match=r"the input 'd_k' \(f32\[2\], d\['k'\]\) is missing"):
        model(d_more_0=np.ones(2, np.float32))
    with pytest.raises(InputError, match=r"It takes: d_k \(d\['k'\]\), d_more_0 \(d\['more'\]\[0\]\)"):
        model({"k": np.ones(2, np.float32), "more": [np.ones(2, np.float32)]})
    tuples = imported(Program(lambda x: (x, (x + 1, x + 2))), (torch.ones(2),))
    assert tuples.outputs == ("output_0", "output_1.0", "output_1.1")


# -- messages


def test_messages_say_what_to_do() -> None:
    class KV(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cache", torch.zeros(2))

        def forward(self, x: Any) -> Any:
            self.cache.copy_(x)
            return self.cache + 1

    with pytest.raises(InputError, match=r"KV changes its buffer 'cache' when it is called.*argument of forward"):
        imported(KV(), (torch.ones(2),))
    with pytest.raises(Unsupported, match=r"native_dropout.*Call module.eval\(\) first"):
        mesh.from_torch(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).train(), torch.ones(1, 2))


def test_a_decoder_that_gives_its_cache_is_told_of_use_cache() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=9)
    with pytest.raises(InputError, match=r"cannot export GPT2LMHeadModel.*use_cache=False"):
        imported(transformers.GPT2LMHeadModel(config), (torch.ones(1, 3, dtype=torch.int64),))
