"""The OpenAI API's operations, one row for each route."""

from typing import Final

from ..anthropic.schemas import MessagesPrompt, MessagesRequest
from ..batches.answers import BatchList, BatchObject, DeletedFile, FileList, FileObject
from ..batches.batches_api import BatchRequest
from ..ollama.schemas import OllamaChat, OllamaEmbed, OllamaEmbedding, OllamaGenerate, Show
from ..openai.responses.schemas import ResponsesRequest
from ..openai.schemas import ChatRequest, CompletionRequest, Detokenize, TokenizeChat, TokenizeText
from ..pooling.schemas import ClassifyRequest, EmbeddingsRequest, PoolingRequest, RerankRequest, ScoreRequest
from .message_answers import MessageAnswer, TokenCount
from .ollama_answers import (
    OllamaChatAnswer,
    OllamaGenerateAnswer,
    OllamaModels,
    OllamaShown,
    OllamaVector,
    OllamaVectors,
    OllamaVersion,
    RunningModels,
)
from .operation import ANTHROPIC, BYTES, JSON, OLLAMA, Answer, Operation, answers
from .pooling_answers import ClassifyAnswer, EmbeddingsAnswer, PoolingAnswer, RerankAnswer, ScoreAnswer
from .public_answers import (
    ChatAnswer,
    CompletionAnswer,
    Detokenized,
    Load,
    Model,
    ModelList,
    Ready,
    ServerVersion,
    Tokenized,
    TokenizerInfo,
)
from .response_answers import DeletedResponse, InputTokens, ItemList, ResponseAnswer

EVENTS: Final = "text/event-stream"
LINES: Final = "application/x-ndjson"
METRICS: Final = {200: Answer({"text/plain": str})}
READY: Final = {
    200: Answer({JSON: Ready}, "Requests are served"),
    503: Answer({JSON: Ready}, "Requests are not served: why"),
}
FILE_FORM: Final = {
    "type": "object",
    "required": ["purpose", "file"],
    "properties": {
        "purpose": {"type": "string", "enum": ["batch"]},
        "file": {"type": "string", "format": "binary"},
        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
        "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 2592000},
    },
}

OPERATIONS: Final = {
    "POST /v1/chat/completions": Operation(
        {200: Answer({JSON: ChatAnswer, EVENTS: str})}, (ChatRequest,), refusals=(404, 429)
    ),
    "POST /v1/completions": Operation(
        {200: Answer({JSON: CompletionAnswer, EVENTS: str})}, (CompletionRequest,), refusals=(404, 429)
    ),
    "POST /v1/responses": Operation(
        {200: Answer({JSON: ResponseAnswer, EVENTS: str})}, (ResponsesRequest,), refusals=(404, 429)
    ),
    "POST /v1/responses/input_tokens": Operation(answers(InputTokens), (ResponsesRequest,), refusals=(404,)),
    "GET /v1/responses/{response_id}": Operation(answers(ResponseAnswer), refusals=(404,)),
    "DELETE /v1/responses/{response_id}": Operation(answers(DeletedResponse), refusals=(404,)),
    "GET /v1/responses/{response_id}/input_items": Operation(answers(ItemList), refusals=(404,)),
    "POST /v1/responses/{response_id}/cancel": Operation({}, refusals=(400, 404)),
    "POST /v1/messages": Operation(
        {200: Answer({JSON: MessageAnswer, EVENTS: str})}, (MessagesRequest,), refusals=(404, 429), errors=ANTHROPIC
    ),
    "POST /v1/messages/count_tokens": Operation(
        answers(TokenCount), (MessagesPrompt,), refusals=(404,), errors=ANTHROPIC
    ),
    "POST /api/chat": Operation(
        {200: Answer({JSON: OllamaChatAnswer, LINES: str})}, (OllamaChat,), refusals=(404, 429), errors=OLLAMA
    ),
    "POST /api/generate": Operation(
        {200: Answer({JSON: OllamaGenerateAnswer, LINES: str})}, (OllamaGenerate,), refusals=(404, 429), errors=OLLAMA
    ),
    "POST /api/embed": Operation(answers(OllamaVectors), (OllamaEmbed,), refusals=(404, 429), errors=OLLAMA),
    "POST /api/embeddings": Operation(answers(OllamaVector), (OllamaEmbedding,), refusals=(404, 429), errors=OLLAMA),
    "GET /api/tags": Operation(answers(OllamaModels), errors=OLLAMA),
    "GET /api/ps": Operation(answers(RunningModels), errors=OLLAMA),
    "POST /api/show": Operation(answers(OllamaShown), (Show,), refusals=(404,), errors=OLLAMA),
    "GET /api/version": Operation(answers(OllamaVersion), errors=OLLAMA),
    "POST /v1/files": Operation(answers(FileObject), form=FILE_FORM, refusals=(507,)),
    "GET /v1/files": Operation(answers(FileList)),
    "GET /v1/files/{file_id}": Operation(answers(FileObject)),
    "DELETE /v1/files/{file_id}": Operation(answers(DeletedFile), refusals=(409,)),
    "GET /v1/files/{file_id}/content": Operation({200: Answer({BYTES: bytes})}),
    "POST /v1/batches": Operation(answers(BatchObject), (BatchRequest,), refusals=(404, 429)),
    "GET /v1/batches": Operation(answers(BatchList)),
    "GET /v1/batches/{batch_id}": Operation(answers(BatchObject)),
    "POST /v1/batches/{batch_id}/cancel": Operation(answers(BatchObject), refusals=(409,)),
    "POST /v1/embeddings": Operation(answers(EmbeddingsAnswer), (EmbeddingsRequest,), refusals=(404, 429)),
    "POST /pooling": Operation(answers(PoolingAnswer), (PoolingRequest,), refusals=(404, 429)),
    "POST /classify": Operation(answers(ClassifyAnswer), (ClassifyRequest,), refusals=(404, 429)),
    "POST /score": Operation(answers(ScoreAnswer), (ScoreRequest,), refusals=(404, 429)),
    "POST /v1/score": Operation(answers(ScoreAnswer), (ScoreRequest,), refusals=(404, 429)),
    "POST /rerank": Operation(answers(RerankAnswer), (RerankRequest,), refusals=(404, 429)),
    "POST /v1/rerank": Operation(answers(RerankAnswer), (RerankRequest,), refusals=(404, 429)),
    "POST /v2/rerank": Operation(answers(RerankAnswer), (RerankRequest,), refusals=(404, 429)),
    "GET /v1/models": Operation(answers(ModelList)),
    "GET /v1/models/{name}": Operation(answers(Model)),
    "POST /tokenize": Operation(answers(Tokenized), (TokenizeText, TokenizeChat), refusals=(404,)),
    "POST /detokenize": Operation(answers(Detokenized), (Detokenize,), refusals=(404,)),
    "GET /tokenizer_info": Operation(answers(TokenizerInfo), refusals=(404,)),
    "GET /load": Operation(answers(Load)),
    "GET /ping": Operation({200: Answer(words="The process is alive")}),
    "POST /ping": Operation({200: Answer(words="The process is alive")}),
    "GET /health": Operation({200: Answer(words="The process is alive")}),
    "GET /ready": Operation(READY),
    "GET /version": Operation(answers(ServerVersion)),
    "GET /metrics": Operation(METRICS),
}
