"""The XLA client: devices, compilation, execution, and data transfer.

jax's private names are in `jax_private`, and jaxlib's in `mlir`. The rest of lazytpu imports the private names it needs
from here.
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

# jax warns at each fork that the child may hang in XLA. It cannot: a forked child, such as a DataLoader worker, is
# refused the device.
private.at_fork.__code__ = (lambda: None).__code__

# XLA's exception; its text is "STATUS_CODE: message".
XlaError = private.XlaError

# Private to jaxlib and without type information: an executable loaded on its device, and an array on one device.
Executable = Any
Array = Any
Options: TypeAlias = Mapping[str, bool | int | str] | None

# ---- the client


@cache
def client() -> Any:
    """Return the XLA client that runs everything, shared with jax. `options.platform` (LAZYTPU_PLATFORM) names its
    platform. The default is jax's own choice: a TPU or GPU if jax has one, else the CPU.

    Raises:
        PlatformError: the platform is not on this machine, or cannot be used by this process alone.
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
    """Whether the client is, or would be, a TPU client."""
    return not AIM and (options.platform or jax_platforms().partition(",")[0]) == "tpu"


def is_there() -> bool:
    """Whether lazytpu or jax has a client already."""
    return client.cache_info().currsize > 0 or private.has_backends()


@contextmanager
def _no_search_for_tpus(name: str | None) -> Iterator[None]:
    """Keep jax from looking for TPUs inside the context if the machine has none and none was requested. Where libtpu is
    installed, for example for the cost report, the search would take a second and write a page to standard error."""
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
    """Return the platform that programs run on: "cpu", "tpu" or "gpu"."""
    name = str(client().platform)
    return "gpu" if name in ("cuda", "rocm") else name


def chip() -> str:
    """Return XLA's name of the TPU, such as "TPU v6 lite"; where there is none, of the chip that kernels are traced
    for."""
    return str(devices()[0].device_kind) if platform() == "tpu" else private.IMAGINED_CHIP


def raw_platform() -> str:
    """Return XLA's name of the platform; for a GPU it is "cuda" or "rocm"."""
    return str(client()._raw_platform)


def devices() -> list[Any]:
    """Return the devices of this process, in XLA's order."""
    return list(AIM) or list(client().local_devices())


AIM: list[Any] = []  # the devices of a topology to compile for: see `lazytpu.runtime.tpu.topologies`


distributed_client = private.distributed_client
gloo_collectives = private.gloo_collectives
make_cpu_client = private.make_cpu_client


def make_tpu_client(connection: Any) -> Any:
    """Make the client of a process in a job with one TPU chip for each process, and wait for the other processes. The
    chip was chosen by libtpu's variables (`lazytpu.runtime.xla.chips`). `connection` is a `distributed_client`.

    It becomes jax's own client, since libtpu allows one client per process, and jax needs one for lowering.
    """

    def make() -> Any:
        if not private.plugin_loaded("tpu"):
            private.register_profiler(private.load_plugin("tpu", private.libtpu_path() or "libtpu.so"))
        if not private.plugin_initialized("tpu"):
            private.initialize_plugin("tpu")
        return private.make_plugin_client("tpu", private.configured_options("tpu"), connection)

    private.register_backend("tpu", make, priority=300, fail_quietly=False)
    with with_environment(private.JAX_ENVIRONMENT):
        return private.get_backend("tpu")


JOINED: list[Any] = []  # the client of a process in a multi-process job: see `lazytpu.runtime.jobs.multiprocess`


def use(joined: Any) -> None:
    """Run everything on another client from now on."""
    JOINED[:] = [joined]
    for cached in (client, _placement, result_handler):
        cached.cache_clear()


def has_processes(processes: Sequence[int]) -> bool:
    """Whether the client knows all of these processes."""
    return not processes or {device.process_index for device in client().devices()}.issuperset(processes)


def devices_of(processes: Sequence[int]) -> list[Any]:
    """Return the first device of each of these processes. Device ids do not help: XLA numbers those of process 1 from
    2048."""
    first = {device.process_index: device for device in reversed(client().devices())}
    return [first[process] for process in processes]


def device_list(count: int, among: Sequence[Any] = ()) -> Any:
    """Return the first `count` devices of this process, or of `among`, in the form that the client's `compile`
    takes."""
    return private.DeviceList(tuple((among or devices())[:count]))


@cache
def _placement(index: int) -> tuple[Any, Any, Any]:
    """Return (device, device list, sharding) of one device, in the forms that the calls below take."""
    device = devices()[index]
    return device, private.DeviceList((device,)), private.SingleDeviceSharding(device)


# ---- MLIR


def mlir_context() -> ir.Context:
    """Return a new MLIR context with the dialects of StableHLO, CHLO and func loaded (about 3 ms). Contexts are not
    shared: types and attributes live as long as their context, and two threads must not build in one."""
    return private.make_context()


def module_bytecode(module: ir.Module) -> bytes:
    """Return the module as MLIR bytecode. `ir.Module.parse` reads it in any context."""
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
    """Compile a StableHLO (and CHLO) module with a public `@main` for one device, or for one device of each process in
    `members`. The order of the members is the order of the replicas.

    `options` are XLA's debug options by name, such as `{"xla_dump_to": "/tmp/dump"}`.

    Raises:
        CompileError: XLA refused the module. The message names the program `name`.
    """
    devices, chosen = _target(device, options, members)
    # The local reference keeps the pool alive: at exit, Python destroys module globals, but not the locals of a thread
    # that is still compiling.
    pool = private.THREAD_POOL  # noqa: F841  (all contexts use it)
    try:
        return client().compile_and_load(module, devices, chosen)
    except (XlaError, ValueError) as error:
        raise compile_error(name, str(error)) from error


def _target(device: int, options: Options, members: Sequence[int]) -> tuple[Any, Any]:
    """Return the devices and options of a program for one device, or for one device of each process in `members`."""
    if not members:
        return _placement(device)[1], compile_options(device, options)
    among = devices_of(members)
    return device_list(len(among), among), compile_options(0, options, 1, len(among), among)


def compile_options(
    device: int, options: Options, partitions: int = 1, replicas: int = 1, among: Sequence[Any] = ()
) -> Any:
    """Return XLA's options for a program on partitions * replicas devices of `among` (by default, of this process),
    from number `device` on. `options` are debug options by name."""
    among = among or devices()
    ids = [chosen.id for chosen in among[device : device + partitions * replicas]]
    # With excess precision, XLA would keep a bfloat16 chain in float32 inside a fusion and round less often. Results
    # would then depend on program boundaries. torch rounds after every op.
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
    """Return all compile options besides the module, as bytes for a cache key: these options, the flags of XLA_FLAGS,
    and jax's configuration. The device number and dump options do not count."""
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
    """Serialize an executable for `deserialize` in another process; None if it, or its platform, does not support
    that."""
    try:
        return bytes(executable.serialize())
    except (XlaError, RuntimeError, NotImplementedError, ValueError):
        return None


def deserialize(data: bytes, *, device: int = 0, options: Options = None, members: Sequence[int] = ()) -> Executable:
    """Load an executable from `serialize` on a device, with the options that it was compiled with. XLA hardly checks
    the bytes before it runs them as code: they must come from `serialize` in the same environment.

    Raises:
        LoadError: XLA refused the bytes.
    """
    devices, chosen = _target(device, options, members)
    try:
        return client().deserialize_executable(data, devices, chosen)
    except (XlaError, RuntimeError, ValueError) as error:
        raise LoadError(str(error)) from error


def registered_functions() -> set[str]:
    """Return the names of this process's functions that programs may call."""
    return set(private.custom_call_targets(client().platform))


def prepare_lapack() -> None:
    """Register LAPACK's functions, so that programs can call them."""
    private.prepare_lapack_call("potrf_ffi", np.dtype(np.float32))


def topology() -> str:
    """Return XLA's fingerprint of the compilation target: the kind and arrangement of the devices; on a CPU, the
    features of its instruction set that XLA may use."""
    kinds = sorted({str(device.device_kind) for device in devices()})
    try:
        described = private.get_topology(devices())
        return f"{', '.join(kinds)} {described.fingerprint():016x}"
    except XlaError:  # a platform without topology descriptions
        return f"{', '.join(kinds)} x{len(client().devices())}"


def platform_version() -> str:
    """Return the platform's version: of libtpu, of CUDA, or "cpu" on a CPU."""
    return str(client().platform_version)


@lru_cache(maxsize=4096)
def _aval(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    return private.ShapedArray(shape, dtype)


@lru_cache(maxsize=4096)
def result_handler(dtype: np.dtype[Any], shape: tuple[int, ...], device: int = 0) -> Any:
    """Return the C++ handler that turns one result of `execute_sharded` into an array. A handler shared by all results
    of its type costs 0.3 us a result, against 2 us through Python or 2.5 us by `execute`."""
    return private.array_result_handler(_aval(dtype, shape), _placement(device)[2], committed=True, **private.UNCHECKED)


# ---- moving data


def to_device(array: np.ndarray[Any, Any], device: int = 0) -> Array:
    """Copy a host array (any strides, any dtype with an XLA counterpart, including 64-bit ones) to the device.

    The copy is complete when the call returns, so the caller may overwrite its memory at once. XLA owns the result, so
    it can be donated. Takes about 4 us for a small array.

    Raises:
        OutOfMemory: the device has no room for it.
    """
    target, _, sharding = _placement(device)
    aval = _aval(array.dtype, array.shape)
    # jax.device_put ends in `batched_device_put`. Its default semantics, ZERO_COPY, may read the memory after the call
    # has returned. enable_x64 keeps 64-bit dtypes in any jax configuration.
    try:
        return private.device_put(aval, sharding, [array], [target], True, True, private.COPY_DURING_CALL, True)
    except XlaError as error:
        raise run_error("the copy to the device", str(error)) from error


def to_host(array: Array, copy: bool = True) -> np.ndarray[Any, Any]:
    """Wait for a device array and return its values.

    With `copy`, they are in writable memory that the caller owns. Without, they are a read-only view of device memory
    that the host can address (the CPU). The view keeps that memory alive, and while it exists XLA copies instead of
    donating.

    Raises:
        RunError: the program that computes the array failed.
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
    """Return another array object for the same memory."""
    return private.jax.make_array_from_single_device_arrays(array.shape, array.sharding, [array])


def is_ours(array: Array) -> bool:
    """Whether a jax array is on the device of this process that programs run on."""
    device_set = array.sharding.device_set
    return len(device_set) == 1 and next(iter(device_set)) == devices()[0]


def wait(arrays: Sequence[Array]) -> None:
    """Wait until every array is computed; donated ones are skipped.

    Raises:
        RunError: a program that computes one of them failed.
    """
    try:
        private.block_until_ready([array for array in arrays if not array.is_deleted()])
    except (XlaError, RuntimeError) as error:
        raise run_error("a program", str(error), lost=None) from error


def is_deleted(array: Array) -> bool:
    """Whether the memory of an array was donated or deleted."""
    return bool(array.is_deleted())


def is_ready(array: Array) -> bool:
    """Whether waiting for an array would return at once: it is computed, donated or deleted."""
    return bool(array.is_deleted() or array.is_ready())


def address(array: Array) -> int:
    """Wait for an array and return its address in device memory."""
    return int(array.unsafe_buffer_pointer())
