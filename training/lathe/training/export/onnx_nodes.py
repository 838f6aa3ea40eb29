"""Builder of ONNX graphs: numbered nodes and constants, and the operations that several steps share."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

OPSET = 18
"""ONNX operator set of the graphs."""


class GraphBuilder:
    """Builder of one ONNX graph.

    A method that adds nodes returns the name of their output.

    Args:
        onnx: the imported onnx module.

    Attributes:
        nodes: ONNX nodes added so far.
        constants: ONNX initializers added so far.
    """

    def __init__(self, onnx: Any) -> None:
        self.onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def build_model(self, inputs: list[Any], outputs: list[Any]) -> Any:
        """Build the ONNX model of the nodes added so far, with these inputs and outputs (ValueInfoProto)."""
        helper = self.onnx.helper
        graph = helper.make_graph(self.nodes, "chain", inputs, outputs, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)

    def describe(self, name: str, kind: str, shape: list[Any]) -> Any:
        """Return the description (ValueInfoProto) of an input or output of a type of TensorProto, such as "FLOAT"."""
        return self.onnx.helper.make_tensor_value_info(name, getattr(self.onnx.TensorProto, kind), shape)

    def add_normalization(self, x: str) -> str:
        """Add the nodes that L2-normalize each row of the tensor named `x`, and return the output's name.
        Zero rows stay zero.
        """
        scaled, _ = self.add_scaling(x)
        length = self.add_row_reduction("ReduceL2", scaled)
        return self.add_node("Div", [scaled, self.add_zero_replacement(length)])

    def add_norm(self, x: str) -> str:
        """Add the nodes that compute the L2 norm of each row of the tensor named `x`.
        Return the name of the norms `(n, 1)`.
        """
        scaled, largest = self.add_scaling(x)
        length = self.add_row_reduction("ReduceL2", scaled)
        return self.add_node("Mul", [length, largest])

    def add_scaling(self, x: str) -> tuple[str, str]:
        """Add the nodes that divide each row of the tensor named `x` by its largest absolute entry.
        Return the names of the quotient and of the divisor.

        Without this, squares of entries such as 1e-30 or 1e30 underflow or overflow in float32.

        Returns:
            the names of quotient and divisor.
        """
        largest = self.add_row_reduction("ReduceMax", self.add_node("Abs", [x]))
        return self.add_node("Div", [x, self.add_zero_replacement(largest)]), largest

    def add_row_reduction(self, operator: str, x: str) -> str:
        """Add the node that reduces each row of the tensor named `x` to one number.
        Return the name of the numbers `(n, 1)`.

        Args:
            operator: ONNX operator, such as "ReduceMax".
            x: name of the input.
        """
        return self.add_node(operator, [x, self.add_constant(np.array([-1]))], keepdims=1)

    def add_zero_rows(self, x: str, reference: str) -> str:
        """Add the nodes that set rows of the tensor `x` to zero where the tensor `reference` has a row of zeros.
        Return the output's name.
        """
        largest = self.add_row_reduction("ReduceMax", self.add_node("Abs", [reference]))
        is_zero = self.add_node("Equal", [largest, self.add_number(0.0)])
        return self.add_node("Where", [is_zero, self.add_number(0.0), x])

    def add_zero_replacement(self, x: str) -> str:
        """Add the nodes that replace zeros in the tensor named `x` by ones, and return the output's name."""
        is_zero = self.add_node("Equal", [x, self.add_number(0.0)])
        return self.add_node("Where", [is_zero, self.add_number(1.0), x])

    def add_node(self, operator: str, inputs: list[str], output: str | None = None, **attributes: Any) -> str:
        """Add an ONNX node to the graph, and return the name of its output, a new one if none is given."""
        output = output or f"chain_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operator, inputs, [output], **attributes))
        return output

    def add_constant(self, values: NDArray[Any]) -> str:
        """Add an array to the graph as a constant (an initializer), and return its name.
        Arrays of float64 are converted to float32.
        """
        # ONNX operators take inputs of one type; the graph computes in float32.
        values = values.astype(np.float32) if values.dtype == np.float64 else values
        name = f"chain_constant_{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def add_number(self, value: float) -> str:
        """Add a float32 scalar as an initializer, and return its name."""
        return self.add_constant(np.array(value, np.float32))

    def add_integers(self, values: NDArray[Any]) -> str:
        """Add an int32 initializer, and return its name."""
        return self.add_constant(values.astype(np.int32))

    def add_cast(self, x: str, kind: str, output: str | None = None) -> str:
        """Add the node that casts the tensor named `x` to a data type such as "FLOAT", and return the output's name."""
        return self.add_node("Cast", [x], output, to=getattr(self.onnx.TensorProto, kind))
