"""NiceGUI run with FastAPI: a page whose counter lives in memory, as every NiceGUI page does."""

from __future__ import annotations

from fastapi import FastAPI
from nicegui import ui


@ui.page("/")
def page() -> None:
    count = 0
    label = ui.label("count 0")

    def incr() -> None:
        nonlocal count
        count += 1
        label.text = f"count {count}"

    ui.button("incr", on_click=incr)


app = FastAPI()
ui.run_with(app)
