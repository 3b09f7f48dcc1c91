"""The packages of the wheel: those under src/, and three folders at the top that are imported under its name."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages("src"),
        "understudy.flows",
        "understudy.flows.commands",
        "understudy.shipped",
        "understudy.tasks",
        "understudy.tasks.engine",
    ]
)
