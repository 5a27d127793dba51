"""Another allocator's plan beside ours: read, matched, checked, shown.

``plan.py`` owns ``ForeignPlan``, which every reader makes; ``table.py`` reads CSV tables and frames; ``matching.py``
finds our tensor of each row and lays both orders over each other; ``document.py`` draws it.
"""

from rlx_viz.foreign.document import ForeignDocument, foreign_document
from rlx_viz.foreign.plan import Ends, ForeignError, ForeignPlan, Includes, InvalidPlanError, Violation, require_valid
from rlx_viz.foreign.table import read_foreign

__all__ = ["Ends", "ForeignDocument", "ForeignError", "ForeignPlan", "Includes", "InvalidPlanError", "Violation",
           "foreign_document", "read_foreign", "require_valid"]
