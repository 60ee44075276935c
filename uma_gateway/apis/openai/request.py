"""Parses OpenAI's chat requests into our types."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

from uma_gateway.apis.openai.guided import read_guided
from uma_gateway.asking import Ask
from uma_gateway.body import array, boolean, flag, integer, table, text
from uma_gateway.errors import invalid, unsupported
from uma_gateway.fields import MOST_LOGPROBS, model_name, stops_told
from uma_gateway.model import Model
from uma_gateway.prompting import Chat
from uma_gateway.turns import plain_content

MOST_ANSWERS = 128
MODES = ("auto", "none", "required", "any")  # of a tool choice; "any" is Mistral's and Anthropic's name for "required"


@dataclass(frozen=True)
class Shape:
    """Values that all parts of one answer carry."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    tier: dict[str, str]

    @classmethod
    def of(cls, model: Model, prefix: str, body: dict[str, Any]) -> Shape:
        named = model_name(body, model)
        tier = {"service_tier": str(body["service_tier"])} if body.get("service_tier") not in (None, "auto") else {}
        return cls(prefix + secrets.token_urlsafe(18), int(time.time()), named, model.system_fingerprint, tier)

    def fields(self, kind: str) -> dict[str, Any]:
        """Return the fields that are the same in each part. `kind`: the value of `object`."""
        told = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return {**told, "system_fingerprint": self.system_fingerprint, **self.tier}


def read_chat(body: dict[str, Any]) -> Ask:
    """Read a chat request. Raises: GatewayError."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise invalid("`messages` is required: an array of messages", "messages")
    refuse_media(body)
    has_functions = bool(array(body, "functions"))
    tools, choice = read_tools(*_functions(body) if has_functions else (array(body, "tools"), body.get("tool_choice")))
    chat = Chat(
        messages,
        tools,
        choice,
        False if has_functions else read_parallel(body, choice),
        add_generation_prompt=boolean(body, "add_generation_prompt", True),
        continue_final_message=_continued(body),
        reasoning_format=text(body, "reasoning_format") or "auto",
        grammar=text(body, "grammar") or "",
    )
    read_thinking(body, chat)
    read_verbosity(body, chat)
    return Ask(
        chat,
        is_stream=boolean(body, "stream"),
        wants_usage=boolean(table(body, "stream_options"), "include_usage"),
        n=answers_wanted(body),
        n_logprobs=read_logprobs(body),
        n_prompt_logprobs=read_prompt_logprobs(body),
        prediction=read_prediction(body),
        has_functions=has_functions,
        stops_told=stops_told(body),
        echo=_echoed(chat) if boolean(body, "echo") else "",
    )


def _functions(body: dict[str, Any]) -> tuple[list[Any], Any]:
    """Return OpenAI's older `functions` and `function_call` as tools and a tool choice. Raises: GatewayError."""
    if body.get("tools"):
        raise invalid("`functions` conflicts with `tools`, which replaced them", "functions")
    choice = body.get("function_call")
    if isinstance(choice, dict):
        choice = {"type": "function", "function": choice}
    elif choice not in (None, "auto", "none"):
        raise invalid("`function_call` must be auto, none or an object with a `name`", "function_call")
    for i, function in enumerate(body["functions"]):
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise invalid(f"`functions[{i}]` must be an object with a `name`", f"functions[{i}]")
    if isinstance(choice, dict) and choice["function"].get("name") not in [each["name"] for each in body["functions"]]:
        raise invalid("`function_call` must have the `name` of one of the `functions`", "function_call")
    return [{"type": "function", "function": function} for function in body["functions"]], choice


def _continued(body: dict[str, Any]) -> bool | str:
    """Return whether the last message is to be continued, or which part of it: llama-server accepts the part's name.

    Raises: GatewayError.
    """
    wish = body.get("continue_final_message")
    wish = wish if wish in ("content", "reasoning_content") else boolean(body, "continue_final_message")
    # the last message is continued, or a new one begins; not both
    if wish and body.get("add_generation_prompt") is True:
        raise invalid("`add_generation_prompt` conflicts with `continue_final_message`", "add_generation_prompt")
    return wish


def _echoed(chat: Chat) -> str:
    """Return the text that an answer continues, for clients that want it repeated. Thoughts are not repeated."""
    last = chat.messages[-1] if chat.messages else None
    if not isinstance(last, dict) or chat.continue_final_message not in (True, "content"):
        return ""
    return plain_content(last.get("content"))


def read_prediction(body: dict[str, Any]) -> str:
    """Return OpenAI's predicted output as text. Raises: GatewayError."""
    content = table(body, "prediction").get("content")
    if content is not None and not isinstance(content, (str, list)):
        raise invalid("`prediction.content` must be a string or an array of parts", "prediction")
    return plain_content([part for part in content if isinstance(part, dict)] if isinstance(content, list) else content)


def refuse_media(body: dict[str, Any]) -> None:
    """Refuse fields that would change the kind of the answer. Raises: GatewayError."""
    if body.get("audio") is not None or any(kind != "text" for kind in array(body, "modalities")):
        raise unsupported("only text can be generated", "modalities")
    for name in ("web_search_options", "moderation"):
        if body.get(name) is not None:
            raise unsupported(f"`{name}` is done by OpenAI's servers, and not supported", name)


def answers_wanted(body: dict[str, Any], name: str = "n") -> int:
    """Return how many answers each prompt gets. Raises: GatewayError."""
    return integer(body, name, 1, MOST_ANSWERS) or 1


def read_logprobs(body: dict[str, Any]) -> int | None:
    """Return how many alternatives to report for each token; None: no log probabilities. Raises: GatewayError."""
    n_top = integer(body, "top_logprobs", 0, MOST_LOGPROBS)
    if boolean(body, "logprobs"):
        return n_top or 0
    if n_top:
        raise invalid("`top_logprobs` needs `logprobs`: true", "top_logprobs")
    return integer(body, "n_probs", 0, MOST_LOGPROBS) or None  # llama-server's field


def read_prompt_logprobs(body: dict[str, Any]) -> int | None:
    """Read vLLM's field: how many alternatives to report for each of the prompt's tokens; None: no log probabilities of
    the prompt. Raises: GatewayError.
    """
    n_top = integer(body, "prompt_logprobs", 0, MOST_LOGPROBS)
    if n_top is not None and boolean(body, "stream"):
        raise invalid("`prompt_logprobs` cannot be streamed", "prompt_logprobs")
    return n_top


def read_tools(tools: list[Any], choice: Any) -> tuple[list[dict[str, Any]], str | dict[str, Any]]:
    """Return the functions that the model knows, and which of them it may or must call. Raises: GatewayError."""
    known = [_tool(tool, i) for i, tool in enumerate(tools)]
    if choice is None:
        return known, "auto"
    if isinstance(choice, dict) and choice.get("type") in MODES:  # as Anthropic writes it
        choice = choice["type"]
    if isinstance(choice, str):
        choice = "required" if choice == "any" else choice
        if choice not in MODES:
            raise invalid("`tool_choice` must be auto, none, required or an object", "tool_choice")
        if choice == "required" and not known:
            raise invalid("`tool_choice` is required, but there are no `tools`", "tool_choice")
        return known, choice
    if not isinstance(choice, dict):
        raise invalid("`tool_choice` must be auto, none, required or an object", "tool_choice")
    names = {tool["function"]["name"] for tool in known}
    if choice.get("type") != "allowed_tools":
        return known, {"type": "function", "function": {"name": _chosen_name(choice, names)}}
    allowed = table(choice, "allowed_tools") or choice  # flat in the Responses API
    mode = allowed.get("mode", "auto")
    chosen = [_chosen_name(item, names) for item in array(allowed, "tools")]
    if mode not in ("auto", "required") or not chosen:
        raise invalid(
            "`tool_choice` of type allowed_tools needs a `mode`, auto or required, and `tools`", "tool_choice"
        )
    tools_named = [{"type": "function", "function": {"name": name}} for name in chosen]
    return known, {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools_named}}


def read_parallel(body: dict[str, Any], choice: str | dict[str, Any]) -> bool | None:
    """Return whether an answer may have several calls; None: as the template allows. If the request names a function,
    it is called once, as with OpenAI. Raises: GatewayError.
    """
    wish = flag(body, "parallel_tool_calls")
    return False if isinstance(choice, dict) and choice["type"] == "function" else wish


def _tool(tool: Any, i: int) -> dict[str, Any]:
    path = f"tools[{i}]"
    if isinstance(tool, dict) and tool.get("type") == "custom":
        raise unsupported(f"`{path}`: custom tools are not supported; a function with one text does the same", path)
    if not isinstance(tool, dict) or tool.get("type", "function") != "function":
        raise invalid(f"`{path}` must be an object of type function", path)
    function = tool.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise invalid(f"`{path}.function.name` is required", f"{path}.function.name")
    if not isinstance(function.get("parameters", {}), (dict, type(None))):
        raise invalid(f"`{path}.function.parameters` must be a JSON schema", f"{path}.function.parameters")
    return {**tool, "type": "function"}


def _chosen_name(choice: Any, known: set[str]) -> str:
    function = choice.get("function", choice) if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise invalid("`tool_choice.function.name` must be a string", "tool_choice")
    if name not in known:
        raise invalid(f"`tool_choice` names {name[:100]!r}, which is not among `tools`", "tool_choice")
    return name


def read_thinking(body: dict[str, Any], chat: Chat) -> None:
    """Read whether, and how long, the model may think: OpenAI's `reasoning_effort`, and the templates' names for it.

    Raises: GatewayError.
    """
    chat.template_kwargs = dict(table(body, "chat_template_kwargs"))
    wish = chat.template_kwargs.get("enable_thinking")
    if wish is not None and not isinstance(wish, bool):
        raise invalid("`chat_template_kwargs.enable_thinking` must be true or false", "chat_template_kwargs")
    chat.enable_thinking = wish is not False
    read_effort(text(body, "reasoning_effort"), chat)
    for name in ("reasoning_budget_tokens", "thinking_budget_tokens", "reasoning_budget"):
        budget = integer(body, name)
        if budget is not None and budget >= 0:
            chat.reasoning_budget = budget
            break
    chat.reasoning_message = text(body, "reasoning_budget_message") or ""


def read_effort(effort: str | None, chat: Chat) -> None:
    """Read how long the model should think, which some templates use."""
    if effort == "none":
        chat.enable_thinking = False
    elif effort:
        chat.template_kwargs.setdefault("reasoning_effort", effort)


def read_verbosity(body: dict[str, Any], chat: Chat) -> None:
    """Read how much the model should say, which some templates use. Raises: GatewayError."""
    verbosity = text(body, "verbosity")
    if verbosity:
        chat.template_kwargs.setdefault("verbosity", verbosity)


def response_format(body: dict[str, Any], chat: Chat) -> None:
    """Read the form that the answer must have. Raises: GatewayError."""
    form = wanted_form(body)
    chat.json_schema, chat.is_strict, chat.constraint = form.schema, form.is_strict, form.constraint
    chat.form_param = form.param if form.is_any or not chat.grammar else "grammar"
    if chat.grammar and (form.is_any or chat.has_tools):
        raise invalid("`grammar` conflicts with a schema and with tools", "grammar")
    if form.constraint is not None and chat.has_tools:
        raise invalid(f"`{form.param}` conflicts with tools", form.param)


class Form(NamedTuple):
    """The form that an answer must have. `param` names the field that asks for it."""

    param: str
    schema: dict[str, Any] | bool | None = None  # True: any object, None: any text
    is_strict: bool = False  # the whole schema must be enforced
    constraint: dict[str, Any] | None = None  # another constraint, in the daemon's form

    @property
    def is_any(self) -> bool:
        return self.schema is not None or self.constraint is not None


def wanted_form(body: dict[str, Any]) -> Form:
    """Return the form that OpenAI's `response_format`, llama-server's `json_schema` or vLLM's fields ask for. Raises:
    GatewayError.
    """
    guided = read_guided(body)
    forms = [
        Form("response_format", *answer_form(table(body, "response_format"), "response_format")),
        Form("json_schema", None if body.get("json_schema") is None else table(body, "json_schema") or True),
        Form(guided.param, guided.schema, False, guided.constraint),
    ]
    wanted = [form for form in forms if form.is_any]
    if len(wanted) > 1:
        raise invalid(f"`{wanted[1].param}` conflicts with `{wanted[0].param}`", wanted[1].param)
    return wanted[0] if wanted else forms[0]


def answer_form(form: dict[str, Any], param: str) -> tuple[dict[str, Any] | bool | None, bool]:
    """Return the schema that an answer must have (True: any object, None: any text), and whether it must be enforced
    completely.

    Raises: GatewayError.
    """
    kind = form.get("type", "text" if not form else None)
    if kind == "text":
        return None, False
    if kind in ("json_object", "json"):  # with llama-server's `schema`, or Text Generation Inference's `value`
        if form.get("schema") is not None and form.get("value") is not None:
            raise invalid(f"`{param}.value` conflicts with `{param}.schema`", f"{param}.value")
        return table(form, "schema") or table(form, "value") or True, False
    if kind != "json_schema":
        raise invalid(f"`{param}.type` must be text, json_object or json_schema", f"{param}.type")
    inner, path = (table(form, "json_schema"), f"{param}.json_schema") if "schema" not in form else (form, param)
    if not isinstance(inner.get("schema"), dict):
        raise invalid(f"`{path}.schema` is required", f"{path}.schema")
    return inner["schema"] or True, boolean(inner, "strict")
