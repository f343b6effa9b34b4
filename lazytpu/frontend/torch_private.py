"""torch's private names, in one place. `CHECKED` are the releases against which each was checked (docs/versions.md);
differences between them are selected by `VERSION`. Attributes of modules that are imported later are `Place`s."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import _compile as untraced_calls
from torch import _guards, _meta_registrations, _prims_common
from torch import _tensor_str as tensor_str
from torch._C._dynamo import eval_frame
from torch._guards import TracingContext
from torch._higher_order_ops.cond import cond_op
from torch._higher_order_ops.scan import scan_op
from torch._higher_order_ops.while_loop import while_loop_op
from torch._prims import rng_prims
from torch._subclasses import fake_tensor
from torch.autograd import forward_ad, profiler, profiler_util
from torch.jit._script import OrderedDictWrapper, OrderedModuleDict
from torch.optim.optimizer import _use_grad_for_differentiable
from torch.utils import _python_dispatch, checkpoint
from torch.utils import _pytree as pytree
from torch.utils._device import _device_constructors
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from lazytpu.versions import release

__all__ = ["pytree", "tensor_str", "untraced_calls"]

CHECKED = ("2.13", "2.14", "2.15")
VERSION = release(torch.__version__)


class Place(NamedTuple):
    """An attribute, by its dotted `name`, of a `module` that other code imports."""

    module: str
    name: str

    def _owner(self) -> Any:
        path = self.name.rpartition(".")[0]
        return attrgetter(path)(sys.modules[self.module]) if path else sys.modules[self.module]

    def get(self) -> Any:
        """Return its value, once the module is imported."""
        return getattr(self._owner(), self.name.rpartition(".")[2])

    def set(self, value: Any) -> None:
        """Set its value."""
        setattr(self._owner(), self.name.rpartition(".")[2], value)


setup_backend = _setup_privateuseone_for_python_backend
float32_matmul_precision = torch._C._get_float32_matmul_precision  # raises RuntimeError when backends differ
float32_precision = torch._C._get_fp32_precision_getter  # arguments: a backend or "generic", and an op or "all"
is_deterministic = torch._C._get_deterministic_algorithms
fills_unwritten = torch._C._get_deterministic_fill_uninitialized_memory
DeviceGuard = torch._C._acc.DeviceGuard  # pyright: ignore[reportAttributeAccessIssue]
PRIVATE_USE = torch._C._autograd.DeviceType.PrivateUse1  # pyright: ignore[reportAttributeAccessIssue]
Variable = torch.autograd.Variable  # holds autograd's engine, whose methods backward() calls
AutogradEngine = torch._C._ImperativeEngine

ACCELERATOR_RANDOM: Any = torch.accelerator.random if VERSION >= (2, 14) else None  # pyright: ignore

Profile: Any = profiler.profile  # of torch.autograd, which torch.profiler's classes hold
FunctionEvent: Any = profiler_util.FunctionEvent
host_range: Any = torch._C._profiler._RecordFunctionFast  # pyright: ignore[reportAttributeAccessIssue]

Key = torch._C.DispatchKey
KeySet = torch._C.DispatchKeySet
# Through this key, native kernels of views, and set_, run on any tensor without bounds checks. (Through the CPU's key,
# set_ would allocate memory for our storages, which are empty, and leave them on the meta device.)
META = KeySet(Key.Meta)


def native(op: Any) -> Callable[..., Any]:
    """Return a function (key set, arguments) that runs torch's own kernel of `op` for that key.

    It is `op.redispatch` without the Python code around it, which takes a sixth of the time.
    """
    return op._handle.redispatch_boxed


# (size, dtype) -> contiguous tensor on tpu:0, a new storage
empty_tensor = torch._C._acc.create_empty_tensor  # pyright: ignore[reportAttributeAccessIssue]
as_strided = native(torch.ops.aten.as_strided.default)
# (tensor, size, stride, offset from its own) -> a view, without the dispatcher and without any check. Unlike torch's
# kernels of views, it takes part in inference mode by the current mode, not by the tensor's.
reinterpret = torch._C._dynamo.guards._reinterpret_tensor  # pyright: ignore[reportAttributeAccessIssue]
in_inference_mode = torch.is_inference_mode_enabled
set_storage = native(torch.ops.aten.set_.source_Storage_storage_offset)

stash_in_thread = torch._C._stash_obj_in_tls  # travels with torch's thread state into autograd's threads
thread_stash = torch._C._get_obj_in_tls
is_stashed = torch._C._is_key_in_tls

AllgatherOptions = torch._C._distributed_c10d.AllgatherOptions  # pyright: ignore[reportAttributeAccessIssue]
CallbackWork = torch._C._distributed_c10d.PythonCallbackWork  # pyright: ignore[reportAttributeAccessIssue]
neg_view = torch._neg_view  # pyright: ignore[reportPrivateImportUsage]
rename_backend = torch.utils.rename_privateuse1_backend  # pyright: ignore[reportPrivateImportUsage]
op_names = torch._C._dispatch_get_all_op_names
has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
runs_on = torch._C._dispatch_has_computed_kernel_for_dispatch_key  # includes composite kernels and fallbacks
sequence_number = torch.autograd._get_sequence_nr  # pyright: ignore[reportPrivateImportUsage]
current_node = torch._C._current_autograd_node
BACKWARD = torch.autograd.graph._engine_run_backward.__code__  # runs while a thread waits for its backward
backward_id = torch._C._current_graph_task_id  # of the backward that this thread works for, or -1
MODULE_CALL = torch.nn.Module._call_impl.__code__  # runs during a module's call; `self` is the module
OPTIMIZER_STEP = torch.optim.Optimizer.profile_hook_step(lambda: None).__code__  # runs the step of `self`
SGD_GROUP = "_init_group"  # the method of torch.optim.SGD by which each step collects its parameters
breaking_step = _use_grad_for_differentiable  # wraps a step so that it breaks Dynamo's graphs
SCALER_STATE = torch.amp.GradScaler._lazy_init_scale_growth_tracker.__code__  # creates the state of `self`
without_keys = torch._C._ExcludeDispatchKeyGuard
below_autograd = torch._C._AutoDispatchBelowAutograd
backend_name = torch._C._get_privateuse1_backend_name
default_backend_name = "privateuseone"

CpuGenerator = torch._C.Generator  # the native classes behind the facades in `torch`
NativeStream = torch.Stream
NativeEvent = torch.Event
native_address = attrgetter("_cdata")  # of a generator: equal for all Python objects of one generator
StorageBase = torch._C.StorageBase
TensorBase = torch._C.TensorBase
make_subclass = torch.Tensor._make_subclass  # (class, tensor): an alias of that class
ScriptMapping = OrderedDictWrapper, OrderedModuleDict  # replace a ScriptModule's dicts of members
AUTOCAST_KEY: Any = Key.AutocastPrivateUse1  # pyright: ignore[reportAttributeAccessIssue]
AUTOCAST = KeySet(AUTOCAST_KEY)
to_dlpack = torch._C._to_dlpack
to_dlpack_device = torch._C._torchDeviceToDLDevice
function_mode_enabled = torch._C._is_torch_function_mode_enabled
device_constructors = _device_constructors  # cached: functions that take a default device
swap_tensor_impl = torch._C._swap_tensor_impl

# torch.compile: the class behind the backend "inductor", and the attributes that dynamo/routing.py changes
InductorBackend = torch._TorchCompileInductorWrapper
INDUCTOR = Place("torch._inductor.compile_fx", "compile_fx")
DYNAMO = "torch._dynamo"
SYMBOLIC_SHAPES = "torch.fx.experimental.symbolic_shapes"
promoted_dtypes: Any = _prims_common.elementwise_dtypes
# attribute of a function that Dynamo must not trace: `untraced_calls` calls its value instead
UNTRACED = "__dynamo_disable"
MARKS = Place(DYNAMO, "mark_dynamic"), Place(f"{DYNAMO}.decorators", "mark_dynamic")
REGISTER_BACKEND = Place("torch._dynamo.backends.registry", "register_backend")
TPU_INTERFACE = Place("torch._dynamo.device_interface", "TpuInterface")
DYNAMO_RULES = "torch._dynamo.trace_rules"
SKIP_PACKAGE = Place(DYNAMO_RULES, "add")
RULES_BY_NAME = Place(DYNAMO_RULES, "manual_torch_name_rule_map")
TRACED = Place(DYNAMO_RULES, "UserFunctionVariable")  # the rule of traced functions
OPAQUE = Place(DYNAMO_RULES, "_allowed_callable_ids"), Place(DYNAMO_RULES, "_nonstrict_trace_callable_ids")
# (class) -> whether its objects are operands of a graph
_OBJECT = "CustomClassObjectVariable" if VERSION >= (2, 14) else "TorchScriptObjectVariable"
IS_OPERAND = Place("torch._dynamo.variables.script_object", f"{_OBJECT}.is_matching_cls")
FLEX_DEVICE = Place("torch.nn.attention.flex_attention", "_validate_device")  # (query, key, value), raises
_FLEX = "torch._higher_order_ops.flex_attention"
FLEX, FLEX_BACKWARD = Place(_FLEX, "flex_attention"), Place(_FLEX, "flex_attention_backward")  # as in CONTROL_FLOW
FLEX_IDENTITY = Place("torch.nn.attention.flex_attention", "_identity")  # the score_mod of a call without one
FLEX_VMAP = Place("torch.nn.attention.flex_attention", "_vmap_for_bhqkv")  # (mask_mod, prefix, suffix)
# a context in which indexing by a 0-d tensor of vmap does not read it
FLEX_INDEXING = Place("torch._dynamo._trace_wrapped_higher_order_op", "TransformGetItemToIndex")
FAKE_RULE = Place("torch._subclasses.fake_impls", "register_op_impl")  # (check)(implementation)
# Sets Dynamo's callback for calls; returns the old one.
set_frame_callback = torch._C._dynamo.eval_frame.set_eval_frame  # pyright: ignore[reportAttributeAccessIssue]

set_frame_strategy = eval_frame.set_code_exec_strategy  # sets Dynamo's treatment of a code object's frames
# do not trace it, nor its callees
LEAVE_ALONE = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)
GRAPH_BREAKS = Place("torch._dynamo.utils", "graph_break_reasons")  # a list of GraphCompileReason
without_modes = _python_dispatch._disable_current_modes
dispatch_modes = torch._C._len_torch_dispatch_stack  # () -> the number of active ones, torch's own included
has_tensors_inside = _python_dispatch.is_traceable_wrapper_subclass
without_functions = torch._C.DisableTorchFunction  # includes modes
without_autocast = torch._C._DisableAutocast  # pyright: ignore[reportAttributeAccessIssue]

CONTROL_FLOW = (cond_op, while_loop_op, scan_op)  # higher-order ops, with a `py_impl` for a dispatch key

FakeTensor = fake_tensor.FakeTensor  # (mode, meta tensor, device)
save_random_state = rng_prims.run_and_save_rng_state  # (op, *args) -> (state, results)
with_random_state = rng_prims.run_with_rng_state  # (state, op, *args) -> results
HigherOrderOperator = torch._ops.HigherOrderOperator  # an op of a captured graph that calls graphs

no_torch_function = torch._C._disabled_torch_function_impl  # a subclass with it behaves like a plain tensor
# (function, types, args, kwargs): calls it, and emits the C++ warnings of that call before it returns
call_with_warnings = torch._C._disabled_torch_function_impl
no_torch_dispatch: Any = vars(torch.Tensor)["__torch_dispatch__"]  # a subclass with it has none of its own
CheckpointFrame = checkpoint._CheckpointFrame  # of non-reentrant checkpoints
# None outside torch.func
transforms = torch._C._functorch.peek_interpreter_stack  # pyright: ignore[reportAttributeAccessIssue]
is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # pyright: ignore[reportAttributeAccessIssue]
attention_by_device = torch._C._get_overrideable_sdp_enabled  # pyright: ignore[reportAttributeAccessIssue]

# Changed for the device when they are imported: FSDP, DTensor, pipelines, the flop counter
FSDP_INIT, FSDP2_INIT = "torch.distributed.fsdp._init_utils", "torch.distributed.fsdp._fully_shard._fsdp_init"
FSDP_DEVICE = Place(FSDP_INIT, "_get_device_from_device_id")
FSDP_MOVE, FSDP2_MOVE = (Place(module, "_move_states_to_device") for module in (FSDP_INIT, FSDP2_INIT))
FSDP2_MESH = Place(FSDP2_INIT, "_init_default_mesh")
FSDP2_COPY_IN = Place("torch.distributed.fsdp._fully_shard._fsdp_collectives", "all_gather_copy_in_cuda")
FLAT_PARAM = Place("torch.distributed.fsdp._flat_param", "FlatParamHandle")
# The backends of groups that torch attaches no flight recorder to; it cannot to ours, which is a whole process group.
UNRECORDED = Place("torch.distributed.distributed_c10d", "_FR_SELF_RECORDING_BACKENDS") if VERSION >= (2, 15) else None
DTENSOR = Place("torch.distributed.tensor", "DTensor")
DEVICE_MESH = Place("torch.distributed.device_mesh", "DeviceMesh")
PLACEMENTS = "torch.distributed.tensor.placement_types"
REPLICATE_TO_SHARD = Place(PLACEMENTS, "Shard._replicate_to_shard")
MESH_SCATTER = Place(PLACEMENTS, "mesh_scatter")
GROUPINGS = tuple(
    Place(module, "_group_tensors_by_device_and_dtype")
    for module in ("torch.optim.optimizer", "torch.nn.utils.clip_grad", "torch.optim.swa_utils")
)
PIPELINE_GROUPS = Place("torch.distributed.pipelining._backward", "get_param_groups")
REGISTER_FLOPS = Place("torch.utils.flop_counter", "register_flop_formula")

CHOLESKY = () if VERSION >= (2, 14) else (torch.ops.aten.cholesky.default,)  # torch.linalg.cholesky_ex remains

# The sources of a result's strides: the memory format of an input, or of the CPU's kernel for a convolution; the
# dimensions of an FFT, and its result on the CPU.
suggest_memory_format = _prims_common.suggest_memory_format
select_convolution = torch._C._select_conv_backend
convolution_format = torch._C._conv_determine_backend_memory_format
sorted_fft_dims = _meta_registrations._sort_dims
meta_fft = _meta_registrations._exec_fft


@contextmanager
def undisturbed() -> Iterator[None]:
    """Context: the user's modes do not see the ops that torch runs inside."""
    with without_modes(), without_functions():
        yield


def mark_dynamic(tensor: torch.Tensor, dim: int, least: int | None, most: int | None) -> None:
    """Set torch's own mark, which torch.compile and `dynamic_dims` read."""
    from torch._dynamo import decorators  # takes a second to import

    decorators.mark_dynamic(tensor, dim, min=least, max=most)


def dynamic_dims(tensor: Any) -> list[tuple[int, int | None, int | None]]:
    """Return the dimensions of a tensor that were marked dynamic, each with its minimum and maximum size, or None."""
    marked = getattr(tensor, "_dynamo_dynamic_range", None)
    return [(mark.dim, mark.min, mark.max) for mark in marked] if marked else []


def assumes_static_sizes() -> bool:
    """Return whether Dynamo, which is compiling, treats a size as fixed until it has seen a second one."""
    from torch._dynamo import config

    return config.assume_static_by_default


def specialized_floats() -> list[str]:
    """Return the user's Python floats in the frame that Dynamo is compiling that it could not turn into arguments of
    its graph.

    (Names with a call or ___ are excluded: they are tensors' values, and results of graph breaks.)
    """
    from torch._dynamo.symbolic_convert import TensorifyState

    mode: Any = TracingContext.get().fake_mode
    symbols = mode.shape_env.var_to_sources
    names = [s[0].name for symbol, s in symbols.items() if TensorifyState.should_specialize(str(symbol))]
    return [readable_source(name) for name in names if "(" not in name and "___" not in name]


def readable_source(source: str) -> str:
    """Convert Dynamo's name of a source to the user's terms: L['x'] is x, G['y'] the global y."""
    return re.sub(r"\b[LG]\['(\w+)'\]", r"\1", source)


def is_transformed() -> bool:
    """Return whether this is inside a transform of torch.func, or forward mode."""
    return transforms() is not None or forward_ad._current_level >= 0


def by_torch(op: Any, *args: Any) -> Any:
    """Call an op by torch's C++ function for all devices, whatever this device registers.

    (`op.decompose` prefers a Python function if torch has both.)
    """
    implicit = has_kernel(op.name(), "CompositeImplicitAutograd")
    return op._op_dk(Key.CompositeImplicitAutograd if implicit else Key.CompositeExplicitAutograd, *args)


def composite(op: Any) -> Callable[..., Any]:
    """Return a function that calls torch's C++ function of a composite op, whatever this device registers."""
    return partial(op._op_dk, Key.CompositeImplicitAutograd)


def aot_autograd(**options: Any) -> Callable[..., Any]:
    """Return a Dynamo backend from compilers of forward and backward graphs. Imports Dynamo."""
    from torch._dynamo.backends.common import aot_autograd as make

    return make(**options)


def begin_sequence(backend: Any) -> None:
    """Number a backend's collectives from a number that its ranks share; from torch 2.14 on all begin at 0."""
    if VERSION < (2, 14):
        backend._set_sequence_number_for_group()


def inductor_options() -> set[str]:
    """Return the names of the options of torch.compile that inductor has."""
    from torch._inductor import config as inductor

    return set(inductor.get_config_copy())


def default_partition(joint: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:
    """Return the forward and the backward graph of a joint one, with the same saved activations as eager code."""
    from torch._functorch.partitioners import default_partition as partition

    return partition(joint, inputs, **options)


def guard_graph(value: Callable[[], Any], reason: str) -> None:
    """Let Dynamo trace the current function again when `value()` changes. `reason` is logged.

    Outside Dynamo's traces, do nothing.
    """
    context = _guards.TracingContext.try_get()
    if context is None:
        return
    from torch._dynamo.source import GlobalStateSource

    def add(builder: Any, guard: Any) -> None:
        expected = value()  # at the end of tracing
        builder.guard_manager.root.add_lambda_guard(lambda _: value() == expected, [reason], None)

    context.guards_context.dynamo_guards.add(_guards.Guard(GlobalStateSource(), add))


def python_dispatch() -> AbstractContextManager[Any]:
    """Return a context in which meta functions and decompositions run in Python, as for tensors of symbolic sizes."""
    from torch._dispatch.python import enable_python_dispatcher

    return enable_python_dispatcher()


def is_unbacked(size: torch.SymInt) -> bool:
    """Return whether a size of a graph depends on values of tensors."""
    from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols

    return has_free_unbacked_symbols(size)
