"""The plan of a run: built and checked from its config without using a device."""

from credit_jax.plan.objective import Objective
from credit_jax.plan.run import ModelPlan, RunPlan, plan_model, plan_run

__all__ = ["ModelPlan", "Objective", "RunPlan", "plan_model", "plan_run"]
