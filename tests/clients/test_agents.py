"""Agents: openai-agents with its memory, and LangChain's tools."""

import agents
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI

from .conftest import QUERY, QUESTION, Address


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

    model = ChatOpenAI(model="demo", base_url=address.v1, api_key=address.key, max_tokens=100)
    [call] = model.bind_tools([add], tool_choice="add").invoke("What is 5 plus 10?").tool_calls
    assert call["name"] == "add" and {"a", "b"} <= set(call["args"]) and isinstance(add.invoke(call["args"]), int)
