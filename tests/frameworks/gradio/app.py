"""Gradio Blocks mounted in FastAPI: a ``gr.State`` counter behind the queue."""

from __future__ import annotations

import os

import gradio as gr
from fastapi import FastAPI

with gr.Blocks() as demo:
    state = gr.State(0)
    shown = gr.Number()
    pid = gr.Number()
    button = gr.Button("incr")

    def incr(count: int) -> tuple[int, int, int]:
        return count + 1, count + 1, os.getpid()

    button.click(incr, [state], [state, shown, pid], api_name="incr")

app = gr.mount_gradio_app(FastAPI(), demo, path="")
