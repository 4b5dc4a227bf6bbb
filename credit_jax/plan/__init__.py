"""The plan of a run: built and checked from its config without using a device."""

from credit_jax.plan.objective import Objective
from credit_jax.plan.run import RunPlan, plan_model, plan_run

__all__ = ["Objective", "RunPlan", "plan_model", "plan_run"]
