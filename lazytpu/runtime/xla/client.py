"""The XLA client: devices, compiling, running, and data to and from them.

jax's private names are in `jax_private`, jaxlib's in `mlir`; everything else in lazytpu imports what it needs of them
from here. Nothing here changes jax's configuration, so a script may use jax beside lazytpu.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from lazytpu.options import options
from lazytpu.runtime.errors import LoadError, compile_error, run_error
from lazytpu.runtime.xla import chips
from lazytpu.runtime.xla import jax_private as private
from lazytpu.runtime.xla.platforms import jax_platforms, missing_platform
from lazytpu.runtime.xla.processor import without_half_arithmetic
from lazytpu.undisturbed import undisturbed, with_environment

if TYPE_CHECKING:
    from lazytpu.runtime.xla.mlir import ir

# jax warns at each fork that the child may hang in XLA. It cannot: a forked child is refused the device, and workers of
# a DataLoader are such children.
private.at_fork.__code__ = (lambda: None).__code__

# What XLA raises; its text is "STATUS_CODE: message".
XlaError = private.XlaError

# Private to jaxlib and without type information: an executable loaded on its device, and an array on one device.
Executable = Any
Array = Any
Options: TypeAlias = Mapping[str, bool | int | str] | None

# ---- the client


@cache
def client() -> Any:
    """The XLA client that runs everything, shared with jax. `options.platform` (LAZYTPU_PLATFORM) names its platform;
    unset, it is the one jax itself would use: a TPU or GPU if jax has one, else the CPU.

    Raises:
        PlatformError: that platform is not on this machine, or cannot be used by this process alone.
    """
    if AIM:
        return AIM[0].client
    if JOINED:
        return JOINED[0]
    if seeks_tpu():
        chips.alone()
    name = options.platform
    try:
        environment = with_environment(private.JAX_ENVIRONMENT)
        with undisturbed(), environment, _no_search_for_tpus(name), without_half_arithmetic():
            return private.get_backend(name)
    except RuntimeError as error:
        raise missing_platform(name, error) from error


def seeks_tpu() -> bool:
    """Whether the client is a TPU's, or would be one if there were one already."""
    return not AIM and (options.platform or jax_platforms().partition(",")[0]) == "tpu"


def is_there() -> bool:
    """Whether there is a client already, lazytpu's or jax's own."""
    return client.cache_info().currsize > 0 or private.has_backends()


@contextmanager
def _no_search_for_tpus(name: str | None) -> Iterator[None]:
    """Inside, jax looks for no TPU when the machine has none and nobody asked for one. Where libtpu is installed, for
    the cost report, say, it would take a second to find nothing, and write a page about it to standard error."""
    asked = name == "tpu" or jax_platforms() or "JAX_FORCE_TPU_INIT" in os.environ
    if asked or private.count_chips()[0]:
        yield
        return
    searches = private.backend_factories
    search = searches.pop("tpu", None)
    try:
        yield
    finally:
        if search is not None:
            searches["tpu"] = search


def platform() -> str:
    """Where programs run: "cpu", "tpu" or "gpu"."""
    name = str(client().platform)
    return "gpu" if name in ("cuda", "rocm") else name


def raw_platform() -> str:
    """The same by its own name: a GPU's is "cuda" or "rocm"."""
    return str(client()._raw_platform)


def devices() -> list[Any]:
    """The devices of this process, in XLA's order."""
    return list(AIM) or list(client().local_devices())


AIM: list[Any] = []  # the devices of a topology that is not there: see `lazytpu.runtime.tpu.topologies`


distributed_client = private.distributed_client
gloo_collectives = private.gloo_collectives
make_cpu_client = private.make_cpu_client


def make_tpu_client(connection: Any) -> Any:
    """The client of a process that is one of several, each with one chip: libtpu must have been told which
    (`lazytpu.runtime.xla.chips`). `connection` is a `distributed_client`. Waits for the other processes.

    It becomes jax's own client, since libtpu gives a process no second one, and jax asks for its own when it lowers.
    """

    def make() -> Any:
        if not private.plugin_loaded("tpu"):
            private.load_plugin("tpu", private.libtpu_path() or "libtpu.so")
        if not private.plugin_initialized("tpu"):
            private.initialize_plugin("tpu")
        return private.make_plugin_client("tpu", private.configured_options("tpu"), connection)

    private.register_backend("tpu", make, priority=300, fail_quietly=False)
    with with_environment(private.JAX_ENVIRONMENT):
        return private.get_backend("tpu")


JOINED: list[Any] = []  # the client of a process that is one of several: see `lazytpu.runtime.jobs.multiprocess`


def use(joined: Any) -> None:
    """Run everything on another client from now on."""
    JOINED[:] = [joined]
    for known in (client, _placement, result_handler):
        known.cache_clear()


def has_processes(processes: Sequence[int]) -> bool:
    """Whether the client knows all of these processes."""
    return not processes or {device.process_index for device in client().devices()}.issuperset(processes)


def devices_of(processes: Sequence[int]) -> list[Any]:
    """The first device of each of these processes. Its id says nothing: XLA numbers those of process 1 from 2048."""
    first = {device.process_index: device for device in reversed(client().devices())}
    return [first[process] for process in processes]


def device_list(count: int, among: Sequence[Any] = ()) -> Any:
    """The first `count` devices, or of those `among` them, as `compile` of a client takes them."""
    return private.DeviceList(tuple((among or devices())[:count]))


@cache
def _placement(index: int) -> tuple[Any, Any, Any]:
    """(device, device list, sharding) of one device: what the calls below take it as."""
    device = devices()[index]
    return device, private.DeviceList((device,)), private.SingleDeviceSharding(device)


# ---- MLIR


def mlir_context() -> ir.Context:
    """A new MLIR context with the dialects of StableHLO, CHLO and func loaded (about 3 ms). Contexts are not shared:
    types and attributes live as long as theirs, and two threads must not build in one."""
    return private.make_context()


def module_bytecode(module: ir.Module) -> bytes:
    """The module as MLIR bytecode, to be read back by `ir.Module.parse` in any context."""
    return private.to_bytecode(module)


# ---- compiling


def compile_module(
    module: ir.Module,
    *,
    name: str = "program",
    device: int = 0,
    options: Options = None,
    members: Sequence[int] = (),
) -> Executable:
    """Compile a StableHLO (and CHLO) module with a public `@main` for one device, or for one of each of the processes
    `members`, which are its replicas in that order.

    `options` are XLA's debug options by name, such as `{"xla_dump_to": "/tmp/dump"}`.

    Raises:
        CompileError: XLA refused the module; `name` is what the message calls it.
    """
    devices, chosen = _target(device, options, members)
    # At its end, Python destroys what belongs to modules, but nothing that a thread holds that is still compiling.
    pool = private.THREAD_POOL  # noqa: F841  (all contexts use it)
    try:
        return client().compile_and_load(module, devices, chosen)
    except (XlaError, ValueError) as error:
        raise compile_error(name, str(error)) from error


def _target(device: int, options: Options, members: Sequence[int]) -> tuple[Any, Any]:
    """The devices and options of a program for one device, or for one of each of the processes `members`."""
    if not members:
        return _placement(device)[1], compile_options(device, options)
    among = devices_of(members)
    return device_list(len(among), among), compile_options(0, options, 1, len(among), among)


def compile_options(
    device: int, options: Options, partitions: int = 1, replicas: int = 1, among: Sequence[Any] = ()
) -> Any:
    """XLA's options for a program on partitions * replicas devices, from `device` on, with debug options by name; the
    devices are `among` those that are named, or those of this process."""
    among = among or devices()
    ids = [chosen.id for chosen in among[device : device + partitions * replicas]]
    # Keeping a bfloat16 chain in float32 inside a fusion would round less often, so that results would depend on where
    # programs begin and end; torch rounds after every op.
    overrides: Any = {"xla_allow_excess_precision": False, **(options or {})}
    return private.get_compile_options(
        num_replicas=replicas,
        num_partitions=partitions,
        device_assignment=np.array(ids).reshape(replicas, partitions),
        env_options_overrides=overrides,
        detailed_logging=False,
        backend=among[0].client,
    )


def options_bytes(options: Options = None) -> bytes:
    """All that XLA compiles with besides the module, for the key of a cache: these options, the flags of XLA_FLAGS,
    jax's configuration. Equal for all devices of a kind, and whatever XLA is to dump."""
    relevant = {name: value for name, value in (options or {}).items() if not name.startswith("xla_dump_")}
    compiled_with = compile_options(0, relevant)
    compiled_with.device_assignment = private.DeviceAssignment.create(np.zeros((1, 1), dtype=int))
    debug = compiled_with.executable_build_options.debug_options
    for name in dir(debug):
        if name.startswith("xla_dump_"):
            setattr(debug, name, type(getattr(debug, name))())  # False, 0 or ""
    debug.xla_gpu_cuda_data_dir = ""
    return compiled_with.SerializeAsString()


def serialize(executable: Executable) -> bytes | None:
    """The executable for `deserialize` in another process; None where it, or its platform, cannot be."""
    try:
        return bytes(executable.serialize())
    except (XlaError, RuntimeError, NotImplementedError, ValueError):
        return None


def deserialize(data: bytes, *, device: int = 0, options: Options = None, members: Sequence[int] = ()) -> Executable:
    """The executable of `serialize`, loaded on a device, with the options it was compiled with. XLA looks at the bytes
    hardly at all before it runs them as code: they must be those that `serialize` gave, in this same environment.

    Raises:
        LoadError: XLA refused them.
    """
    devices, chosen = _target(device, options, members)
    try:
        return client().deserialize_executable(data, devices, chosen)
    except (XlaError, RuntimeError, ValueError) as error:
        raise LoadError(str(error)) from error


def registered_functions() -> set[str]:
    """Names of the functions of this process that programs may call."""
    return set(private.custom_call_targets(client().platform))


def prepare_lapack() -> None:
    """Let programs call LAPACK's functions."""
    private.prepare_lapack_call("potrf_ffi", np.dtype(np.float32))


def topology() -> str:
    """What XLA compiles for, as a fingerprint of its own: the kind and arrangement of the devices; on a CPU, the
    features of its instruction set that XLA may use."""
    kinds = sorted({str(device.device_kind) for device in devices()})
    try:
        described = private.get_topology(devices())
        return f"{', '.join(kinds)} {described.fingerprint():016x}"
    except XlaError:  # a platform without descriptions of topologies
        return f"{', '.join(kinds)} x{len(client().devices())}"


def platform_version() -> str:
    """The platform's own version: of libtpu, of CUDA; "cpu" on a CPU."""
    return str(client().platform_version)


@lru_cache(maxsize=4096)
def _aval(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    return private.ShapedArray(shape, dtype)


@lru_cache(maxsize=4096)
def result_handler(dtype: np.dtype[Any], shape: tuple[int, ...], device: int = 0) -> Any:
    """What turns one result of `execute_sharded` into an array, in C++. A handler made once and shared by all results
    of its type costs 0.3 us a result, less than any way through Python (2 us) or `execute` (2.5 us)."""
    return private.array_result_handler(_aval(dtype, shape), _placement(device)[2], committed=True, **private.UNCHECKED)


# ---- moving data


def to_device(array: np.ndarray[Any, Any], device: int = 0) -> Array:
    """Copies a host array (any strides, any dtype with an XLA counterpart, 64-bit ones included) to the device.

    The copy is complete when the call returns: the caller may write its memory at once. XLA owns the result, so it can
    be donated. About 4 us for a small array.

    Raises:
        OutOfMemory: the device has no room for it.
    """
    target, _, sharding = _placement(device)
    aval = _aval(array.dtype, array.shape)
    # `batched_device_put` is what jax.device_put ends in. Its default semantics, ZERO_COPY, may read the memory after
    # the call has returned; enable_x64 keeps 64-bit dtypes whatever the jax configuration says.
    try:
        return private.device_put(aval, sharding, [array], [target], True, True, private.COPY_DURING_CALL, True)
    except XlaError as error:
        raise run_error("the copy to the device", str(error)) from error


def to_host(array: Array, copy: bool = True) -> np.ndarray[Any, Any]:
    """Waits for a device array and gives its values.

    With `copy`, in memory the caller owns and may write. Without, a read-only view of the device's memory where the
    host can see it (the CPU): it keeps that memory alive, and while it lives XLA copies instead of donating.

    Raises:
        RunError: the program that was to make the array failed.
    """
    try:
        values, copied = array._single_device_array_to_np_array_did_copy()
    except (XlaError, RuntimeError) as error:
        raise run_error("the program that makes this value", str(error), lost=None) from error
    if not copy:
        values.flags.writeable = False
        return values
    return values if copied and values.flags.writeable else values.copy()


def alias(array: Array) -> Array:
    """Another array object of the same memory."""
    return private.jax.make_array_from_single_device_arrays(array.shape, array.sharding, [array])


def is_ours(array: Array) -> bool:
    """Whether a jax array lies on the device of this process that programs run on."""
    held = array.sharding.device_set
    return len(held) == 1 and next(iter(held)) == devices()[0]


def wait(arrays: Sequence[Array]) -> None:
    """Waits until every array is there; donated ones are passed over.

    Raises:
        RunError: a program that was to make one of them failed.
    """
    try:
        private.block_until_ready([array for array in arrays if not array.is_deleted()])
    except (XlaError, RuntimeError) as error:
        raise run_error("a program", str(error), lost=None) from error


def is_deleted(array: Array) -> bool:
    """True when the memory of an array is gone: donated, or deleted."""
    return bool(array.is_deleted())


def is_ready(array: Array) -> bool:
    """True when an array is there, or gone: waiting for it would return at once."""
    return bool(array.is_deleted() or array.is_ready())


def address(array: Array) -> int:
    """Where an array lies in device memory (waits for it)."""
    return int(array.unsafe_buffer_pointer())
