"""One package a unit, each of one shape. Loaded by whoever grades; they import `graders.grading`.

    __init__.py          UNIT, the unit's name, and SECTIONS, its modules with exercises in the unit's order
    a_section.py         its exercises: of each the rubric, the inputs drawn, and the checks
    drivers.py           what runs beside the student's code: the only module that the guest loads; what it
                         imports of the package is for drivers only
    released_cells.json  the answer cells as students get them, written by the build

Any other module helps several sections. `drivers.py` beside this file has the drivers that any unit may use.
"""
