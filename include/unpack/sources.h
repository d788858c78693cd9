// Which document an answer came from: the credit of every document and sentence for every sentence
// of an answer.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "unpack/answer.h"

namespace unpack {

struct SourceDocument {
  std::string name, text;
};
// A text file, a JSON list ([{"name", "text"}] or texts), JSON lines, or a folder of text files.
// Throws InputError for what is not UTF-8 or holds no text.
std::vector<SourceDocument> read_documents(const std::filesystem::path& path);

// The list as the text of a JSON array; messages begin with `origin`.
std::vector<SourceDocument> parse_documents(std::string_view json, const std::string& origin);

struct SourcesOptions {
  std::string question;
  std::vector<SourceDocument> documents;
  std::optional<std::string> answer;  // nothing: the model's own
  int generate = 30;                  // tokens of the model's own answer, at most
  // {documents} and {question} are replaced; every document by `document_template`, in which {name}
  // and {text} are.
  std::string prompt_template = "{documents}\nQuestion: {question}\nAnswer:";
  std::string document_template = "{text}\n";
  bool chat = false;  // the prompt is the user's turn of a conversation
  Options options;
  std::size_t strongest = 5;  // tokens listed for a sentence
  int most_tokens = 0;        // of prompt and answer together; 0: the model's context
};
void check_sources(const SourcesOptions& options);  // what can be known without a model

struct SourceSentence {
  Span span;
  std::string text;
};
struct SourcePlace {
  std::string name;
  Span span;
  std::vector<SourceSentence> sentences;
};

struct SourceToken {
  int position = 0;
  std::string text;
  double credit = 0;
};
// One sentence of the answer.
struct AnswerSentence {
  Span span;  // positions of its tokens
  std::string text;
  double log_probability = 0;
  std::vector<double> document_credit;               // [documents]
  std::vector<std::vector<double>> sentence_credit;  // [documents][sentences]
  double other_credit = 0;                           // of the prompt outside the documents
  double answer_credit = 0;
  std::vector<SourceToken> strongest;  // tokens of the documents, largest |credit| first
};

struct SourcesResult {
  ProgramInfo program;
  ModelInfo model;
  Options options;
  std::string question, prompt, answer;
  std::vector<Token> tokens;
  int prompt_length = 0;
  bool generated = false;
  std::vector<SourcePlace> documents;
  std::vector<AnswerSentence> sentences;
};
SourcesResult find_sources(const Model& model, const SourcesOptions& options,
                           const RunContext& context = {});

std::string to_json(const SourcesResult& result);
std::string to_terminal(const SourcesResult& result, const TerminalStyle& style);
std::string to_html(const SourcesResult& result);

}  // namespace unpack
