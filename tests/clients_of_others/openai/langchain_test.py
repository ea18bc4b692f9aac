"""LangChain's models, on OpenAI's client."""

from langchain_openai import ChatOpenAI, OpenAI


def test_a_model_of_texts(server, client):
    model = OpenAI(
        base_url=f"{server.url}/v1", api_key="none", model="books", temperature=0, max_tokens=8
    )
    said = client.completions.create(prompt="Call me", max_tokens=8, temperature=0, model="books")
    assert model.invoke("Call me") == said.choices[0].text
    assert "".join(model.stream("Call me")) == said.choices[0].text
    assert model.batch(["Call me", "Call me"]) == [said.choices[0].text] * 2


def test_a_model_of_chats(server, client):
    for responses in (False, True):
        model = ChatOpenAI(
            base_url=f"{server.url}/v1",
            api_key="none",
            model="books",
            temperature=0,
            max_tokens=8,
            use_responses_api=responses,
        )
        said = client.chat.completions.create(
            messages=[{"role": "user", "content": "Good morning."}],
            max_tokens=8,
            temperature=0,
            model="books",
        )
        answer = model.invoke("Good morning.")
        assert answer.text == said.choices[0].message.content
        assert answer.usage_metadata["output_tokens"] == 8
        assert "".join(part.text for part in model.stream("Good morning.")) == answer.text
