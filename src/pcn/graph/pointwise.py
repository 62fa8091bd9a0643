"""Rules for operators that treat every position alike: unary functions, broadcasting, and per-channel normalisation."""

from __future__ import annotations

from pcn.graph.atoms import Atoms, Carried, Label
from pcn.graph.rules import POINTWISE, Call, Output, as_output, operators, refuse, rule

UNARY = operators(
    """
    _to_copy abs alias alpha_dropout bernoulli bfloat16 ceil celu clamp clamp_max clamp_min clone contiguous cos
    detach detach_ double dropout elu empty_like erf exp expm1 feature_alpha_dropout feature_dropout float floor
    full_like gelu half hardshrink hardsigmoid hardswish hardtanh isnan leaky_relu lift_fresh_copy log log1p
    log_sigmoid logical_not mish nan_to_num native_dropout neg ones_like rand_like randn_like reciprocal relu
    relu6 round rrelu rsqrt selu sigmoid sign silu sin softplus softshrink softsign sqrt square tanh tanhshrink
    threshold to type_as zeros_like
    """
)

BROADCAST = operators(
    """
    add addcdiv addcmul atan2 bitwise_and bitwise_or copysign div eq floor_divide fmod ge gt le lerp logical_and
    logical_or lt masked_fill maximum minimum mul multiply ne pow remainder rsub sub true_divide where xlogy
    """
)

POINTWISE.update(UNARY, BROADCAST)


@rule(*UNARY)
def unary(atoms: Atoms, call: Call) -> Output:
    value, *others = call.tensors()
    if others and call.op not in ("aten.to", "aten.type_as"):  # bounds of a clamp, say, given as tensors
        return broadcast(atoms, call)
    return as_output([Carried(shape, value.labels) for shape in call.shapes])


@rule("aten._assert_tensor_metadata")
def look(atoms: Atoms, call: Call) -> Output:
    """Checking a dtype touches no channel; checking a size does."""
    if call.get("size") or call.get("stride"):
        return refuse(atoms, call, "its size is written into the model's code")
    return Carried.fixed(call.shape)


@rule(*operators("new_empty new_ones new_zeros"))
def made(atoms: Atoms, call: Call) -> Output:
    """A tensor of its own sizes, with the dtype and device of another, whose channels it does not touch."""
    return Carried.fixed(call.shape)


@rule(*BROADCAST)
def broadcast(atoms: Atoms, call: Call) -> Carried:
    return join(atoms, call, list(call.tensors()), call.shape)


def join(atoms: Atoms, call: Call, values: list[Carried], shape: tuple[int, ...]) -> Carried:
    """Couple tensors that meet position by position, aligned from the right."""
    labels = []
    for back in range(len(shape), 0, -1):
        size = shape[-back]
        meeting = [v.labels[-back] for v in values if v.ndim >= back and v.shape[-back] == size]
        labels.append(meet(atoms, meeting, size, call.op))
    return Carried(shape, tuple(labels))


def meet(atoms: Atoms, meeting: list[Label], size: int, op: str) -> Label:
    """Couple the labels that meet along one dimension; one of fixed size pins the others."""
    known = [label for label in meeting if label is not None]
    for label in known[1:]:
        atoms.couple(known[0], label)
    if len(known) < len(meeting) and size > 1:
        for label in known:
            atoms.pin(label, f"it meets a tensor of fixed size in {op}")
    return known[0] if known else None


@rule("aten.batch_norm", "aten.instance_norm", "aten.prelu", "aten._native_batch_norm_legit_no_training")
def per_channel(atoms: Atoms, call: Call) -> Output:
    """Tensors of one dimension that go with dimension 1 of the input, or with its only one."""
    value, *others = call.tensors()
    dim = min(1, value.ndim - 1)
    size = value.shape[dim]
    with_channels = [other.labels[0] for other in others if other.shape == (size,)]
    label = meet(atoms, [value.labels[dim], *with_channels], size, call.op)
    labels = (*value.labels[:dim], label, *value.labels[dim + 1 :])
    return as_output(
        [Carried(shape, labels if len(shape) == value.ndim else (None,) * len(shape)) for shape in call.shapes]
    )


@rule("aten.layer_norm", "aten.rms_norm")
def layer_norm(atoms: Atoms, call: Call) -> Carried:
    value = call["input"]
    first = value.ndim - len(call["normalized_shape"])
    for label in value.labels[first:]:
        atoms.pin(label, f"{call.op} normalises across channels")
    kept = Carried(value.shape[first:], value.labels[first:])
    scales = [t for t in (call.get("weight"), call.get("bias")) if t is not None]
    inner = join(atoms, call, [kept, *scales], kept.shape)
    return Carried(value.shape, (*value.labels[:first], *inner.labels))


@rule("aten.group_norm")
def group_norm(atoms: Atoms, call: Call) -> Output:
    atoms.pin(call["input"].labels[1], "aten.group_norm normalises across channels")
    return per_channel(atoms, call)


@rule("aten.softmax", "aten.log_softmax", "aten._softmax", "aten._log_softmax", "aten.cumsum", "aten.flip", "aten.roll")
def along(atoms: Atoms, call: Call) -> Carried:
    """Operators that mix or reorder positions along their dimensions and leave the others alone."""
    value = next(call.tensors())
    labels = list(value.labels)
    for dim in call.dims("dims" if "dims" in call.arguments else "dim", value.ndim):
        atoms.pin(labels[dim], f"{call.op} works across channels")
    return Carried(call.shape, tuple(labels))


@rule(*operators("mean sum amax amin var std norm linalg_vector_norm prod any all argmax max min"))
def reduce(atoms: Atoms, call: Call) -> Output:
    value, *others = call.tensors()
    if others:  # max and min of two tensors, position by position
        return broadcast(atoms, call)
    gone = call.dims("dim", value.ndim)
    for dim in gone:
        atoms.pin(value.labels[dim], f"{call.op} reduces across channels")
    keep = len(call.shape) == value.ndim
    labels = tuple(None if d in gone else lab for d, lab in enumerate(value.labels) if keep or d not in gone)
    return as_output([Carried(shape, labels) for shape in call.shapes])


@rule(
    *(
        f"aten.{kind}{n}d{suffix}"
        for n in (1, 2, 3)
        for kind, suffix in [
            ("max_pool", ""),
            ("max_pool", "_with_indices"),
            ("avg_pool", ""),
            ("adaptive_avg_pool", ""),
            ("_adaptive_avg_pool", ""),
            ("adaptive_max_pool", ""),
            ("upsample_nearest", ""),
            ("_upsample_nearest_exact", ""),
            ("upsample_bicubic", ""),
        ]
    ),
    "aten.upsample_linear1d",
    "aten.upsample_bilinear2d",
    "aten.upsample_trilinear3d",
    "aten.lp_pool2d",
)
def pool(atoms: Atoms, call: Call) -> Output:
    value = next(call.tensors())
    spatial = int(call.op.removesuffix("_with_indices")[-2])
    first = value.ndim - spatial
    for label in value.labels[first:]:
        atoms.pin(label, f"{call.op} pools across channels")
    return as_output([Carried(shape, (*value.labels[:first], *(None,) * spatial)) for shape in call.shapes])


@rule("aten.glu")
def glu(atoms: Atoms, call: Call) -> Carried:
    value = next(call.tensors())
    dim = call.get("dim", -1) % value.ndim
    label = value.labels[dim]
    labels = list(value.labels)
    if label is not None:
        first, second = label.chunk(2)
        atoms.couple(first, second)
        labels[dim] = first
    return Carried(call.shape, tuple(labels))
