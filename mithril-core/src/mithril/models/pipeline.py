"""Pipeline: stages, one after another, each on devices of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mithril.errors import OptionError
from mithril.ir.source import at, user_source
from mithril.keywords import list_argument_names, refuse_unknown
from mithril.models.component import Names, check_depth
from mithril.models.composition import Composition, Link, Member
from mithril.models.layer import Layer
from mithril.models.model import Model
from mithril.models.stages import Pipelined
from mithril.models.wiring import Wiring
from mithril.types import to_python


class Pipeline(Model):
    """Stages that run on devices of their own, on one micro-batch after another.

    Outputs of a stage feed the inputs of the next: those of the same name, and the others in
    order; of a stage with an output `output`, such as a layer with losses besides, only that one.
    Inputs that are left over, such as targets of a loss in the last stage, are inputs of the
    pipeline. The first input of the first stage is called `input`, and the output of the last one
    `output`, if it has just one; all others keep their names.

    The stages go along the mesh axis named `pipeline` or `stage`, or else along the mesh dimension
    that has as many devices as there are stages. In the other dimensions each stage has devices
    over which its layers may be split. On one device the stages just run one after another.

    Gradients and outputs are those of one device, whatever the schedule (see
    `mithril.compile(pipeline_schedule=…)`).

    Args:
        stages: models or layers, in order.
        device_assignment: for each stage its index along that axis; by default in order, from the
            start again where there are more stages than devices.
        microbatch_size: samples of a micro-batch, of each data-parallel replica; by default the
            batch is not cut.
        data_parallel: whether the batch is split over the other mesh dimensions even if it
            arrives whole.
        data_parallel_devices: how many devices that are.
        device_mesh: the shape of the mesh; refused on another one.
        device_mesh_partition: which of its dimensions the pipeline goes along.
        stage_to_mesh_dim: the mesh dimension the pipeline goes along.
        name: what the pipeline is called in a model; counted (`pipeline_0`) by default.
        unknown: none; any other option is refused.

    Raises:
        OptionError: there is no stage, a stage has no input, two inputs would get one name, or an
            option has a wrong value.
        GraphError: models and layers are nested too deep in a stage.

    >>> from mithril.models import Linear, Relu
    >>> Pipeline([Linear(8), Relu(), Linear(2)], microbatch_size=4)
    Pipeline(3 stages)
    """

    __slots__ = ()

    def __init__(
        self,
        stages: Sequence[Model | Layer],
        *,
        device_assignment: Sequence[int] | None = None,
        microbatch_size: int | None = None,
        data_parallel: bool = False,
        data_parallel_devices: int | None = None,
        device_mesh: int | Sequence[int] | None = None,
        device_mesh_partition: Sequence[bool] | None = None,
        stage_to_mesh_dim: int | None = None,
        name: str | None = None,
        **unknown: object,
    ) -> None:
        super().__init__(name=name)
        refuse_unknown("Pipeline", unknown, list_argument_names(Pipeline.__init__))
        source = user_source()
        components = [_component(stage, number) for number, stage in enumerate(_list(stages))]
        if not isinstance(data_parallel, bool):
            raise OptionError(
                f"Pipeline option data_parallel is {data_parallel!r}; give True or False"
            )
        if data_parallel_devices is not None and not data_parallel:
            raise OptionError(
                f"Pipeline option data_parallel_devices={data_parallel_devices!r} has no effect "
                f"without data_parallel=True; give that, too, or leave it out"
            )
        pipeline = Pipelined(
            len(components),
            _assignment(device_assignment, len(components)),
            _positive("microbatch_size", microbatch_size),
            data_parallel,
            _positive("data_parallel_devices", data_parallel_devices),
            _shape(device_mesh),
            _flags(device_mesh_partition, device_mesh),
            _dimension(stage_to_mesh_dim),
            source,
        )
        check_depth("Pipeline", max(component.depth for component in components), source)
        members, links = _chain(components, source)
        self._wiring = Wiring(
            Composition(
                members=tuple(members),
                links=tuple(links),
                given_name=self._state.given_name,
                pipeline=pipeline,
            )
        )

    def __ior__(self, other: object) -> Any:
        """Refuse: the stages of a pipeline are given when it is made.

        Raises:
            OptionError: always.
        """
        raise _append_error()

    def __iadd__(self, other: object) -> Any:
        """Refuse: the stages of a pipeline are given when it is made.

        Raises:
            OptionError: always.
        """
        raise _append_error()

    def __repr__(self) -> str:
        return f"Pipeline({len(self._state.members)} stages)"


def _append_error() -> OptionError:
    return OptionError(
        f"Pipeline takes no further layers{at(user_source())}; give all stages when it is made, or "
        f"add what comes after it to the model around it"
    )


def _list(stages: object) -> Sequence[object]:
    if isinstance(stages, Sequence) and not isinstance(stages, str) and stages:
        return stages
    raise OptionError(
        f"Pipeline option stages is {stages!r}; give a list of models or layers, one for each stage"
    )


def _component(stage: object, number: int) -> Composition | Layer:
    component = stage._component() if isinstance(stage, Model | Layer) else stage
    if not isinstance(component, Composition | Layer):
        raise OptionError(
            f"stage {number} of the pipeline is {stage!r}; give a Model or a layer, such as "
            f"ml.Linear(dimension=10)"
        )
    if isinstance(component, Composition) and not component.members:
        raise OptionError(f"stage {number} of the pipeline has no layers; add some to it first")
    if not component.input_ports:
        raise OptionError(
            f"stage {number} of the pipeline has no input; give it one for the stage before to feed"
        )
    return component


def _chain(
    components: Sequence[Composition | Layer], source: Any
) -> tuple[list[Member], list[Link]]:
    """Return the stages, connected one to the next."""
    members: list[Member] = []
    links: list[Link] = []
    before: Names = ()
    last = len(components) - 1
    for number, component in enumerate(components):
        name = f"stage_{number}"
        fed = _match_ports(component.input_ports, before)
        inputs = []
        for port in component.input_ports:
            if port in fed:
                inputs.append((port, f"{name}.{port}"))
                links.append(Link(f"{name}.{port}", fed[port], automatic=False, place=source))
            else:
                is_first = number == 0 and port == component.input_ports[0]
                _check_apart(components[0].input_ports[0], port, name, is_first)
                inputs.append((port, "input" if is_first else port))
        alone = number == last and len(component.output_ports) == 1
        outputs = [
            (port, "output" if alone else port if number == last else f"{name}.{port}")
            for port in component.output_ports
        ]
        members.append(Member(name, component, tuple(inputs), tuple(outputs), source))
        before = tuple(outputs)
    return members, links


def _check_apart(first: str, port: str, stage: str, is_first: bool) -> None:
    """Refuse an input `input` that is another one than the pipeline's first."""
    if port == "input" and first != "input" and not is_first:
        raise OptionError(
            f"{stage} of the pipeline has an input 'input', which is also what the pipeline calls "
            f"the first input of its first stage, '{first}'; rename one of them"
        )


def _match_ports(ports: Sequence[str], before: Names) -> dict[str, str]:
    """Return the connection that feeds each input: of the same name first, then in order.

    Of a stage with an output called `output` the others are no results to go on with.
    """
    found = {port: connection for port, connection in before if port in ports}
    going_on = [(port, c) for port, c in before if port == "output"] or before
    rest = [connection for port, connection in going_on if port not in ports]
    free = [port for port in ports if port not in found]
    return found | dict(zip(free, rest, strict=False))


def _positive(option: str, value: object) -> int | None:
    value = to_python(value)
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise OptionError(f"Pipeline option {option} is {value!r}; give a positive integer")


def _assignment(value: object, stages: int) -> tuple[int, ...] | None:
    value = to_python(value)
    if value is None:
        return None
    if not isinstance(value, Sequence) or not all(
        isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in value
    ):
        raise OptionError(
            f"Pipeline option device_assignment is {value!r}; give an index of 0 or more for each "
            f"stage, such as [0, 1, 2]"
        )
    if len(value) != stages:
        raise OptionError(
            f"Pipeline has {stages} stages and device_assignment {list(value)} names "
            f"{len(value)} devices; give one for each stage"
        )
    return tuple(value)


def _shape(value: int | Sequence[int] | None) -> tuple[int, ...] | None:
    from mithril.mesh.axes import as_shape

    return None if value is None else as_shape(value, "device_mesh")


def _flags(value: object, mesh: object) -> tuple[bool, ...] | None:
    if value is None:
        return None
    if mesh is None:
        raise OptionError(
            f"Pipeline option device_mesh_partition={value!r} has no effect without device_mesh; "
            f"give that, too, or stage_to_mesh_dim"
        )
    if not isinstance(value, Sequence) or not all(isinstance(flag, bool) for flag in value):
        raise OptionError(
            f"Pipeline option device_mesh_partition is {value!r}; give True or False for each "
            f"dimension of device_mesh"
        )
    if sum(value) != 1:
        raise OptionError(
            f"Pipeline option device_mesh_partition is {value!r}; a pipeline goes along one "
            f"dimension: give True once"
        )
    return tuple(value)


def _dimension(value: object) -> int | None:
    value = to_python(value)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise OptionError(f"Pipeline option stage_to_mesh_dim is {value!r}; give a mesh dimension")
