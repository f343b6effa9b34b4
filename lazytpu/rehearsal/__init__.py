"""Rehearsals: steps are recorded but not run, to report what they would cost on a TPU (`lazytpu.tpu_report`)."""
