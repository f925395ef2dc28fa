"""The papers' tables and the races against peers; every figure in the docs is made here."""
