"""Rehearsals: steps are recorded but not run, to estimate their cost on a TPU (`lazytpu.tpu_report`)."""
