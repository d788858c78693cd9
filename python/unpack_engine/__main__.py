"""`python -m unpack_engine` is the program `unpack`."""
from ._program import main

main()
