"""The OpenAI gateway: functions as models, by the protocol of docs/openai.md."""
