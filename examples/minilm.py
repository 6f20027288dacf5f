"""Sentence embeddings on a mesh: `embed(mesh, sentences)` gives float32 (n, 384).

python examples/minilm.py
"""

from mesh import Mesh
from mesh.importers.minilm import embed

__all__ = ["embed"]


def main() -> float:
    sentences = ["A dog chases a ball.", "A puppy runs after its toy.", "Interest rates rose again."]
    with Mesh.builder().local(3).node_timeout(20).build() as mesh:
        embeddings = embed(mesh, sentences, strategy="pipeline")
    similarity = embeddings @ embeddings.T
    assert similarity[0, 1] > 0.4 > similarity[0, 2]
    print(f"how alike sentences are: dog and puppy {similarity[0, 1]:.3f}, dog and rates {similarity[0, 2]:.3f}")
    return float(similarity[0, 1])


if __name__ == "__main__":
    main()
