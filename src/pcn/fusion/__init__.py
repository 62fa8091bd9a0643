"""Running a model's batch norms, ReLUs and projections in one pass; see :func:`fuse_`."""

from pcn.fusion.choose import choose_forms
from pcn.fusion.fastest import fastest_forms
from pcn.fusion.found import Found
from pcn.fusion.fuse import Fusion, fuse_, unfuse_
from pcn.plans.plan import FORMS, Form
from pcn.running.stock import plain

__all__ = ["FORMS", "Form", "Found", "Fusion", "choose_forms", "fastest_forms", "fuse_", "plain", "unfuse_"]
