"""What a plain FSDP2 script costs on a pod, by the TPU's compiler, on a laptop: `python examples/pod.py v5e:16x16`.

The process runs `examples/distributed/fsdp2.py` as rank 0 of a job of one rank for each chip. No other rank exists.
"""

import runpy
import sys
from pathlib import Path

import lazytpu

topology = sys.argv.pop() if len(sys.argv) > 1 else "v5e:16x16"  # the script has arguments of its own
with lazytpu.imagined_job(topology=topology) as job:
    script = runpy.run_path(str(Path(__file__).parent / "distributed/fsdp2.py"), run_name="imagined")
    report = lazytpu.tpu_report(script["step"])

(program,) = report.programs
print(f"one program for {program.devices} devices: {1e6 * program.seconds:.0f} us, {1e6 * program.exposed:.0f} exposed")
for cost in program.collectives:
    print(f"  {cost.collective} of {cost.payload:,} bytes: the core waits {1e6 * cost.waited:.1f} us")
