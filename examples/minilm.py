"""Sentence embeddings on a mesh: `embed(mesh, sentences)` gives float32 (n, 384).

python examples/minilm.py
"""

from mesh import Mesh
from mesh.demo.minilm import embed

__all__ = ["embed"]

if __name__ == "__main__":
    sentences = ["A dog chases a ball.", "A puppy runs after its toy.", "Interest rates rose again."]
    with Mesh.builder().local(3).build() as mesh:
        embeddings = embed(mesh, sentences, strategy="pipeline")
    similarity = embeddings @ embeddings.T
    assert similarity[0, 1] > 0.4 > similarity[0, 2]
    print(f"dog/puppy {similarity[0, 1]:.3f}, dog/rates {similarity[0, 2]:.3f}")
