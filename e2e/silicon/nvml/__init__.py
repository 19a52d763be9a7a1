"""A simulated NVML for one node: the real `pynvml` on GPUs that are not there.

| module | holds |
| --- | --- |
| `codes` | return codes of NVML |
| `placements` | where a GPU instance may stand on a board, and where the driver puts it |
| `state` | the GPUs of a node, and what happens to them: reset, reboot, processes, faults |
| `calls` | what each NVML call does to that state |
| `daemon` | keeps the state of one node behind a Unix socket and in a file |
| `connection` | the client's side of that socket |
| `c_functions` | the functions of libnvidia-ml.so, over the structs of `pynvml` |
| `library` | makes `pynvml` call the daemon, in this process or in a child |
| `in_process` | a state in the same process, for `library` |
| `listings` | the state in the form of `nvidia-smi mig` |

Not simulated: vGPU, MPS and graphics processes, field values, metrics of GPM other than the activity of SMs
and memory, device nodes of /dev/nvidia-caps, CDI specs, the driver's locks, and profiles whose memory or SM
count no public source states.

Sources: nvml.h (return codes, struct fields), the MIG User Guide (placements, activation of MIG mode, what
survives a reboot), operator/tangram/catalog/mig_profiles.yaml (profiles of each board), and calls that were
recorded on an H200 with MIG off (tests/silicon/golden), with which tests compare.
"""
