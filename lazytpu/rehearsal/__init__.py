"""Steps that are recorded as they would run, and nothing runs; what they would cost on a TPU (`lazytpu.tpu_report`)."""
