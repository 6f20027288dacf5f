"""The WGSL engine: a part of a graph becomes a handful of compute shaders that WebGPU runs.

Reading order is the life of a part:

    canonicalise  graph -> plain nodes (composites inlined, no-ops dropped, shapes without work removed)
    fuse          nodes -> groups; one group is one kernel
    elements      one element of a node as a scalar expression over index expressions
    kernels       a group -> loops, loads and stores (map, row, matmul, scatter, sort)
    kernel_ir     what those are made of; `expressions` has the scalar and index algebra
    legalise      which WGSL text computes each scalar op exactly as the op table says; `polyfills` has the functions
    emit          kernel -> WGSL text
    shaders       each distinct group is lowered once, wherever it stands
    memory        buffers -> slots by liveness
    lower         drives all of the above; the result is a Program (`program`), plain data
    device        the only file that knows wgpu
    execute       Program -> pipelines and one pass per run
    cache         Programs on disk
    engine        the Engine protocol over it
"""
