"""jax's private names, in one place; jaxlib's MLIR is in `mlir`. `client` builds on them.

`CHECKED` lists the releases against which each name was checked (docs/versions.md). Differences between releases are
selected by `VERSION`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from typing import Any

from lazytpu.undisturbed import undisturbed, with_environment
from lazytpu.versions import release, require_one_release

CHECKED = ("0.10", "0.11", "0.12")

# On import, jax sets environment variables for the libraries of its clients. lazytpu sets them only while it makes a
# client.
with undisturbed(), with_environment({}) as JAX_ENVIRONMENT:
    try:
        import jax
    except RuntimeError:  # jax and jaxlib are so far apart that jax refuses them
        require_one_release(metadata.version("jax"), metadata.version("jaxlib"))
        raise
    from jax._src.lib import version_str

    require_one_release(jax.__version__, version_str)
    from jax._src import cloud_tpu_init, compiler, core, hardware_utils, lib, pjit, xla_bridge
    from jax._src.interpreters import mlir, partial_eval
    from jax._src.lib import _jax, lapack, xla_client  # pyright: ignore[reportPrivateImportUsage]
    from jax.sharding import SingleDeviceSharding

__all__ = ["SingleDeviceSharding", "jax"]

VERSION = release(jax.__version__)
profiler: Any = lib._profiler  # pyright: ignore[reportAttributeAccessIssue]  (it has no stubs)

at_fork: Any = xla_bridge._at_fork
XlaError: type[Exception] = _jax.JaxRuntimeError

# Clients and their devices
get_backend = xla_bridge.get_backend
has_backends = xla_bridge.backends_are_initialized
backend_factories: dict[str, Any] = xla_bridge._backend_factories
register_backend = xla_bridge.register_backend_factory
configured_options = xla_bridge._options_from_jax_configs
count_chips = hardware_utils.num_available_tpu_chips_and_device_id
libtpu_path = cloud_tpu_init.get_tpu_library_path
distributed_client = _jax.get_distributed_runtime_client
gloo_collectives = _jax.make_gloo_tcp_collectives
make_cpu_client = xla_client.make_cpu_client
make_plugin_client = xla_client.make_c_api_client
load_plugin = xla_client.load_pjrt_plugin_dynamically
register_profiler = profiler.register_plugin_profiler  # of a plugin, as `load_plugin` returns it
ProfilerSession = profiler.ProfilerSession
ProfileOptions = profiler.ProfileOptions
plugin_loaded = _jax.pjrt_plugin_loaded
plugin_initialized = _jax.pjrt_plugin_initialized
initialize_plugin = _jax.initialize_pjrt_plugin
get_topology = xla_client.get_topology_for_devices
custom_call_targets = xla_client.custom_call_targets
prepare_lapack_call = lapack.prepare_lapack_call
DeviceList = _jax.DeviceList
DeviceAssignment = xla_client.DeviceAssignment

# MLIR, and compiling
make_context = mlir.make_ir_context
to_bytecode = mlir.module_to_bytecode
THREAD_POOL = mlir.global_thread_pool  # shared by all contexts
get_compile_options = compiler.get_compile_options
# Options of XLA:CPU for faster compilation and slower code; jaxlib 0.11 has one fusion emitter
WITHOUT_FUSION_EMITTERS: dict[str, bool] = {} if VERSION >= (0, 11) else {"xla_cpu_use_fusion_emitters": False}

# Moving data
ShapedArray = core.ShapedArray
array_result_handler = _jax.array_result_handler
# Arguments that make the handler skip checks of results; from jaxlib 0.11 on it has no checks
UNCHECKED: dict[str, Any] = {} if VERSION >= (0, 11) else {"_skip_checks": True}
device_put = _jax.batched_device_put
block_until_ready = _jax.batched_block_until_ready
COPY_DURING_CALL = _jax.HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL


# From jax 0.12 on, the cotangent of an array in a kernel's memory must have its memory space; jax itself makes others.
DIFFERENTIATES_MEMORY = VERSION < (0, 12)


def interpreted_kernel(*arrays: Any, **params: Any) -> list[Any]:
    """Return the results of a Pallas kernel by jax's interpreter: a loop over the grid in ordinary jax ops. `params`
    are the parameters of the `pallas_call`."""
    from jax._src.pallas import hlo_interpreter  # Pallas takes 0.2 s to import; its users have imported it

    interpreter_params = {name: value for name, value in params.items() if name not in ("interpret", "backend")}
    return list(hlo_interpreter.pallas_call_hlo_interpret(*arrays, **interpreter_params))


def _closed(body: Any) -> Any:
    """Return a jaxpr without constants as a closed one: before jax 0.12 these were two objects."""
    return body if VERSION >= (0, 12) else core.ClosedJaxpr(body, ())


def scoped_body(call: Any) -> Any:
    """Return the body of a `run_scoped` as a closed jaxpr of arrays, without references: its operands are those of the
    call and the memory of the scope, its results those of the call and the memory at the end."""
    from jax._src.state.discharge import discharge_state

    body = partial_eval.convert_constvars_jaxpr(call.params["jaxpr"])
    return discharge_state(_closed(body), should_discharge=True)


def kernel_cost(bodies: Sequence[Any], steps: Sequence[int], moved: int) -> Any:
    """Return the cost estimate of a Pallas kernel of some bodies, jaxprs, each of which runs a number of `steps`, and
    which moves `moved` bytes."""
    from jax._src.pallas import core as pallas

    costs = [(count, *_cost(body)) for body, count in zip(bodies, steps, strict=True)]
    flops, transcendentals = (sum(cost[0] * cost[at] for cost in costs) for at in (1, 2))
    return pallas.CostEstimate(flops, transcendentals, moved)


def _cost(body: Any) -> tuple[int, int]:
    """Return the operations and the transcendental functions that a jaxpr computes. A loop whose length is known only
    at run time counts once, and a branch as much as the costliest. jax's own estimate looks into neither."""
    from jax._src.pallas import cost_estimate

    flops = transcendentals = 0
    for equation in body.eqns:
        inner = [_cost(jaxpr) for jaxpr in core.jaxprs_in_params(equation.params)]
        if equation.primitive.name == "cond":
            inner = [max(inner)]
        if not inner:
            once = cost_estimate.cost_estimate_jaxpr(_closed(body.replace(eqns=[equation], constvars=[])))
            inner = [(once.flops, once.transcendentals)]
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        flops += times * sum(each for each, _ in inner)
        transcendentals += times * sum(each for _, each in inner)
    return flops, transcendentals


IMAGINED_CHIP = "TPU v6 lite"
"""XLA's name of the chip that stands for the device where there is no TPU."""


def imagine_chip() -> None:
    """Let a Pallas kernel that asks for the properties of its chip, as `emit_pipeline` does to choose tiles, be traced
    where there is no TPU: the answer is `IMAGINED_CHIP`. jax raises ValueError otherwise."""
    from jax._src.pallas.mosaic import tpu_info

    kind = tpu_info.get_device_kind()
    if tpu_info.chip_version_from_device_kind(kind) is None:
        chip = tpu_info.chip_version_from_device_kind(IMAGINED_CHIP)
        assert chip is not None
        tpu_info.registry.setdefault(kind, lambda: tpu_info.get_tpu_info_for_chip(chip, 1))


def without_references(closed: Any) -> Any:
    """Return a closed jaxpr that computes with arrays where it made references (`jax.new_ref`) for itself."""
    if core.internal_mutable_array_effect not in closed.effects:
        return closed
    from jax._src.state.discharge import discharge_state

    return discharge_state(closed, should_discharge=False)


def discharge_calls_in_part() -> None:
    """Let Pallas's interpreter run calls with references of two scopes, as nested `emit_pipeline`s make them. It turns
    those of one scope at a time into arrays, where jax's rules for calls turn all of them and fail on the others."""
    from jax._src.state import discharge
    from jax._src.state.types import AbstractRef

    def with_parameter(primitive: Any, parameter: str) -> Any:
        whole = discharge._discharge_rules[primitive]

        def rule(chosen: Sequence[bool], operands: Any, results: Any, *values: Any, **params: Any) -> Any:
            if all(choice for choice, aval in zip(chosen, operands, strict=True) if isinstance(aval, AbstractRef)):
                return whole(operands, results, *values, **params)
            body = discharge.discharge_state(params[parameter], should_discharge=chosen)
            outputs = core.jaxpr_as_fun(body)(*values)
            updates = iter(outputs[len(results) :])
            return [next(updates) if choice else None for choice in chosen], outputs[: len(results)]

        return rule

    for primitive, parameter in ((core.closed_call_p, "call_jaxpr"), (pjit.jit_p, "jaxpr")):
        if primitive not in discharge._partial_discharge_rules:
            discharge._partial_discharge_rules[primitive] = with_parameter(primitive, parameter)


def without_dead_code(closed: Any) -> Any:
    """Return a closed jaxpr without dead code, inside loops as well. It keeps all of its operands."""
    jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
    return closed.replace(jaxpr=jaxpr)


def trace_of(tracer: Any) -> Any:
    """Return the trace of a tracer. It lives as long as any of its tracers."""
    return tracer._trace
