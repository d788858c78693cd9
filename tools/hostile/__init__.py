"""The surfaces of tools/attack.py, a class each: `draw(rng)` gives a case (plain data),
`run(case, place)` says what happened, `smaller(case)` gives cases to try instead. `SURFACES` names
them all."""
from hostile.batches import BatchLines, Merges, Tables
from hostile.commands import CommandLine, Paths
from hostile.files import Ggufs, Pickles
from hostile.models import ModelFiles, Weights
from hostile.python_calls import MODULE, PythonCalls
from hostile.serving import Requests
from hostile.templates import ChatTemplates

SURFACES = {
    "command line": CommandLine,
    "batch": BatchLines,
    "tables": Tables,
    "models": ModelFiles,
    "weights": Weights,
    "gguf": Ggufs,
    "pickles": Pickles,
    "templates": ChatTemplates,
    "paths": Paths,
    "merge": Merges,
    "requests": Requests,
}
if (MODULE / "unpack_engine").is_dir():  # where it is built
    SURFACES["python"] = PythonCalls
