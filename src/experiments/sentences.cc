#include "experiments/sentences.h"

#include "unpack/models.h"

namespace unpack::experiments {

std::vector<CorpusSentence> shuffled_sentences(ModelSession& session, int shortest, int longest) {
  const ExperimentOptions& o = session.options;
  const TextFile file =
      read_text(o.corpus ? *o.corpus : data_file("pocket_text.txt"), o.stop_at_bad_line);
  session.warnings.insert(session.warnings.end(), file.problems.begin(), file.problems.end());
  const int prefix = prompt_prefix(session.model.config(), session.model.tokenizer()).size();
  std::vector<CorpusSentence> out;
  for (const TextLine& line : file.lines) {
    CorpusSentence s{line.line, session.model.encode_prompt(line.text), prefix};
    const int tokens = s.ids.size() - prefix;
    if (tokens >= shortest && tokens <= longest) out.push_back(std::move(s));
  }
  std::mt19937_64 generator(o.seed);
  shuffle(out, generator);
  return out;
}

}  // namespace unpack::experiments
