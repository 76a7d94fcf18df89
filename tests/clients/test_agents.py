"""Agents: openai-agents, LangChain and pydantic-ai with tools, and openai-agents with its memory."""

import agents
import pytest
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from .conftest import QUERY, QUESTION, Address

SUM, ANSWER = "What is 5 plus 10?", "The answer is 15."
WEATHER = "What is the weather in Paris?"


async def test_openai_agents_go_on_where_they_ended(address: Address) -> None:
    agents.set_tracing_disabled(True)
    async with AsyncOpenAI(base_url=address.v1, api_key=address.key) as client:
        model = agents.OpenAIResponsesModel("sql", client)
        agent = agents.Agent(name="sql", model=model, model_settings=agents.ModelSettings(temperature=0))
        first = await agents.Runner.run(agent, QUESTION)
        paris = QUESTION.replace("London", "Paris")
        second = await agents.Runner.run(agent, paris, previous_response_id=first.last_response_id)
        said = await client.responses.input_items.list(second.last_response_id or "")
    assert (first.final_output, second.final_output) == (QUERY, QUERY.replace("London", "Paris"))
    assert [item.content[0].text for item in said.data] == [paris]


async def test_an_agent_of_openai_agents_calls_a_tool_and_ends_in_words(address: Address) -> None:
    called = list[tuple[int, int]]()

    @agents.function_tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        called.append((a, b))
        return 15

    agents.set_tracing_disabled(True)
    async with AsyncOpenAI(base_url=address.v1, api_key=address.key) as client:
        for model in (agents.OpenAIResponsesModel("demo", client), agents.OpenAIChatCompletionsModel("demo", client)):
            settings = agents.ModelSettings(temperature=0, tool_choice="required", parallel_tool_calls=False)
            agent = agents.Agent(name="adder", model=model, tools=[add], model_settings=settings)
            result = await agents.Runner.run(agent, "What is 5 plus 10?")
            assert called and isinstance(result.final_output, str) and result.final_output
            called.clear()


def test_langchain_demands_a_tool(address: Address) -> None:
    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    model = ChatOpenAI(model="demo", base_url=address.v1, api_key=address.key, max_tokens=100, temperature=0)
    [call] = model.bind_tools([add], tool_choice="add").invoke(SUM).tool_calls
    assert call["name"] == "add" and {"a", "b"} <= set(call["args"]) and isinstance(add.invoke(call["args"]), int)


@pytest.mark.parametrize("model_of", [agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel])
async def test_an_agent_of_openai_agents_chooses_a_tool(
    address: Address, model_of: type[agents.OpenAIChatCompletionsModel | agents.OpenAIResponsesModel]
) -> None:
    called = list[tuple[int, int]]()

    @agents.function_tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        called.append((a, b))
        return a + b

    agents.set_tracing_disabled(True)
    async with AsyncOpenAI(base_url=address.v1, api_key=address.key) as client:
        settings = agents.ModelSettings(temperature=0)
        agent = agents.Agent(name="adder", model=model_of("tools", client), tools=[add], model_settings=settings)
        result = await agents.Runner.run(agent, SUM)
    assert (called, result.final_output) == ([(5, 10)], ANSWER)


def test_langchain_chooses_a_tool(address: Address) -> None:
    @tool
    def get_weather(city: str) -> str:
        """The weather of a city."""
        return "25 degrees"

    model = ChatOpenAI(model="tools", base_url=address.v1, api_key=address.key, temperature=0)
    bound = model.bind_tools([get_weather])
    called = bound.invoke(WEATHER)
    [call] = called.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    assert bound.invoke([("user", WEATHER), called, get_weather.invoke(call)]).content == "The answer is 25 degrees."


def test_an_agent_of_pydantic_ai_chooses_a_tool(address: Address) -> None:
    model = OpenAIChatModel("tools", provider=OpenAIProvider(base_url=address.v1, api_key=address.key))
    agent = Agent(model, model_settings={"temperature": 0})
    called = list[tuple[int, int]]()

    @agent.tool_plain
    def add(a: int, b: int) -> int:
        called.append((a, b))
        return a + b

    assert (agent.run_sync(SUM).output, called) == (ANSWER, [(5, 10)])
