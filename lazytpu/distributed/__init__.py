"""Process groups of the device: `torch.distributed` on "tpu".

Nothing here is imported before a process group is made. `group` is what torch calls, `ops` what it records, `world`
starts the job, `control` and `helper` are the control plane.
"""
