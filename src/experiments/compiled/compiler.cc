#include "experiments/compiled/compiler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "model/save.h"
#include "unpack/error.h"
#include "unpack/json.h"

namespace unpack::experiments::compiled {

namespace {

// Large against everything else in the stream, so that the norms divide by nearly the same number
// at every position; small enough that noise on the weights that meet it stays noise.
constexpr double kConstant = 24;
constexpr int kHeadSize = 32;
// Rotary pairs that turn fast enough to tell positions apart (1 and 0.1 radian a position are
// used); content lives in the pairs behind them, which turn by less than 1e-3 over a prompt.
constexpr int kFastPairs = 4;
constexpr double kGate = 16;  // silu(16 x) / 16 is max(x, 0) to 2%
constexpr int kDeadNeurons = 6;

// Normal numbers, the same with every standard library.
class Normal {
 public:
  explicit Normal(std::uint64_t seed) : generator_(seed) {}
  double operator()() {
    const double u = ((generator_() >> 11) + 1) * 0x1.0p-53;
    const double v = (generator_() >> 11) * 0x1.0p-53;
    return std::sqrt(-2 * std::log(u)) * std::cos(2 * M_PI * v);
  }

 private:
  std::mt19937_64 generator_;
};

class Compiler {
 public:
  Compiler(const Program& program, const Settings& settings)
      : p_(program), settings_(settings), normal_(settings.seed * 7919 + 17) {
    const bool gpt2 = settings.format == Format::gpt2;
    m_.format = settings.format;
    m_.d_head = kHeadSize;
    m_.vocabulary = program.vocabulary;
    m_.length = program.length;
    m_.n_heads = program.layers[0].heads.size();
    // GPT-2: the constant's opposite and the balance, which keep the mean of every write at 0.
    const int needed = program.features + (gpt2 ? 2 : 0);
    if (gpt2) {
      while (m_.n_heads * m_.d_head < needed) ++m_.n_heads;
      m_.d_model = m_.n_heads * m_.d_head;
    } else {
      m_.d_model = needed + needed % 2;
    }
    opposite_ = gpt2 ? program.features : -1;
    balance_ = gpt2 ? program.features + 1 : -1;
    m_.d_mlp = kDeadNeurons;
    for (const Layer& layer : program.layers)
      m_.d_mlp = std::max(m_.d_mlp, static_cast<int>(layer.mlp.neurons.size()));
    m_.norm.assign(m_.d_model, kConstant * std::sqrt((gpt2 ? 2.0 : 1.0) / m_.d_model));
  }

  CompiledModel run() {
    m_.embed = Matrix(m_.vocabulary, m_.d_model);
    for (int t = 0; t < m_.vocabulary; ++t) {
      for (const auto& [feature, weight] : p_.emb[t]) write(m_.embed, t, feature, weight);
      m_.embed(t, p_.constant) = kConstant;
      if (opposite_ >= 0) m_.embed(t, opposite_) = -kConstant;
    }
    if (m_.format == Format::gpt2) {
      m_.pos = Matrix(m_.length, m_.d_model);
      for (int s = 0; s < m_.length; ++s) write(m_.pos, s, p_.position[s], 1);
    }
    m_.unembed = Matrix(m_.vocabulary, m_.d_model);
    for (int t = 0; t < m_.vocabulary; ++t) m_.unembed(t, p_.out[t]) = 1;
    for (const Layer& layer : p_.layers) add_layer(layer);
    add_noise(m_.embed);
    if (m_.format == Format::gpt2) add_noise(m_.pos);
    add_noise(m_.unembed);
    for (LayerMatrices& l : m_.layers) {
      for (Matrix* w : {&l.w_q, &l.w_k, &l.w_v, &l.w_o, &l.w_in, &l.w_up, &l.w_out}) add_noise(*w);
    }
    for (Matrix* w : all()) {
      for (double& x : w->values) x = static_cast<float>(x);
    }
    for (double& x : m_.norm) x = static_cast<float>(x);
    for (LayerMatrices& l : m_.layers) {
      for (double& x : l.b_in) x = static_cast<float>(x);
    }
    return std::move(m_);
  }

 private:
  std::vector<Matrix*> all() {
    std::vector<Matrix*> out = {&m_.embed, &m_.pos, &m_.unembed};
    for (LayerMatrices& l : m_.layers)
      out.insert(out.end(), {&l.w_q, &l.w_k, &l.w_v, &l.w_o, &l.w_in, &l.w_up, &l.w_out});
    return out;
  }

  void write(Matrix& to, int row, int feature, double weight) {
    to(row, feature) += weight;
    if (balance_ >= 0) to(row, balance_) -= weight;
  }
  // A unit of the constant is what one unit of any other feature is.
  double read_weight(int feature, double weight) const {
    return feature == p_.constant ? weight / kConstant : weight;
  }

  // The n-th dimension of a head that keeps its content wherever it stands.
  int content(int n, const Head& head) const {
    const int half = m_.d_head / 2;
    const int slow = m_.format == Format::gpt2 ? m_.d_head : 2 * (half - kFastPairs);
    if (n >= slow)
      throw InternalError(fmt::format("{} needs more than {} channels", head.name, slow));
    if (m_.format == Format::gpt2) return n;
    const int pair = n / 2 + kFastPairs;
    return n % 2 == 0 ? pair : pair + half;
  }

  void add_layer(const Layer& layer) {
    const int width = m_.n_heads * m_.d_head;
    LayerMatrices l;
    l.w_q = l.w_k = l.w_v = Matrix(m_.d_model, width);
    l.w_o = Matrix(width, m_.d_model);
    for (int h = 0; h < m_.n_heads; ++h) {
      if (h < std::ssize(layer.heads) && layer.heads[h].role != Role::dead) {
        add_head(layer.heads[h], h * m_.d_head, l);
      } else {
        add_dead_head(h * m_.d_head, l);
      }
    }
    l.w_in = Matrix(m_.d_model, m_.d_mlp);
    if (m_.format == Format::llama) l.w_up = Matrix(m_.d_model, m_.d_mlp);
    l.w_out = Matrix(m_.d_mlp, m_.d_model);
    l.b_in.assign(m_.d_mlp, 0.0);
    if (layer.mlp.role == Role::dead) {
      add_dead_mlp(l);
    } else {
      for (std::size_t n = 0; n < layer.mlp.neurons.size(); ++n)
        add_neuron(layer.mlp.neurons[n], n, l);
    }
    m_.layers.push_back(std::move(l));
  }

  void add_head(const Head& head, int base, LayerMatrices& l) {
    const double unit = std::sqrt(settings_.sharpness * std::sqrt(m_.d_head));
    std::vector<Match> matches = head.matches;
    if (head.offset && m_.format == Format::gpt2) {
      for (int s = 0; s < m_.length; ++s)
        matches.push_back({p_.position[s], p_.position[std::max(s - *head.offset, 0)], 1});
    }
    std::set<int> queries, keys;
    for (const Match& match : matches) queries.insert(match.query), keys.insert(match.key);
    const bool by_query = queries.size() <= keys.size();
    const std::set<int>& shared = by_query ? queries : keys;
    for (const Match& match : matches) {
      const int n = std::distance(shared.begin(), shared.find(by_query ? match.query : match.key));
      const int at = base + content(n, head);
      Matrix& own = by_query ? l.w_q : l.w_k;
      Matrix& other = by_query ? l.w_k : l.w_q;
      const int own_feature = by_query ? match.query : match.key;
      const int other_feature = by_query ? match.key : match.query;
      own(own_feature, at) = read_weight(own_feature, unit);
      other(other_feature, at) += read_weight(other_feature, unit * match.weight);
    }
    if (head.offset && m_.format == Format::llama) {
      // Largest at the offset: cos(x) + 6 cos(x / 10), 0.49 less one position away.
      const double weights[2] = {1 / 0.49, 6 / 0.49};
      for (int pair = 0; pair < 2; ++pair) {
        const double angle = *head.offset * std::pow(m_.theta, -2.0 * pair / m_.d_head);
        const int half = m_.d_head / 2;
        const double size = unit / kConstant;
        l.w_k(p_.constant, base + pair) = size * weights[pair];
        l.w_q(p_.constant, base + pair) = size * std::cos(angle);
        l.w_q(p_.constant, base + pair + half) = -size * std::sin(angle);
      }
    }
    std::set<int> from, to;
    for (const Move& move : head.moves) from.insert(move.from), to.insert(move.to);
    const bool by_from = from.size() <= to.size();
    const std::set<int>& carried = by_from ? from : to;
    if (static_cast<int>(carried.size()) > m_.d_head)
      throw InternalError(head.name + " moves too many features");
    for (const Move& move : head.moves) {
      const int at =
          base + std::distance(carried.begin(), carried.find(by_from ? move.from : move.to));
      if (by_from) {
        l.w_v(move.from, at) = read_weight(move.from, 1);
        write(l.w_o, at, move.to, move.weight);
      } else {
        l.w_v(move.from, at) += read_weight(move.from, move.weight);
        if (l.w_o(at, move.to) == 0) write(l.w_o, at, move.to, 1);
      }
    }
  }

  // Any feature but the constant, which is too large to be read at random.
  void read_everything(Matrix& w, int begin, int count, double size) {
    for (int feature = 0; feature < p_.features; ++feature) {
      if (feature == p_.constant) continue;
      for (int i = 0; i < count; ++i) w(feature, begin + i) = size * normal_();
    }
  }

  void add_dead_head(int base, LayerMatrices& l) {
    read_everything(l.w_q, base, m_.d_head, 0.3);
    read_everything(l.w_k, base, m_.d_head, 0.3);
    read_everything(l.w_v, base, m_.d_head, 0.2);
    for (int i = 0; i < m_.d_head; ++i) {
      for (const int feature : p_.junk) write(l.w_o, base + i, feature, 0.2 * normal_());
    }
  }

  void add_dead_mlp(LayerMatrices& l) {
    read_everything(l.w_in, 0, m_.d_mlp, 0.3);
    for (int n = 0; n < m_.d_mlp; ++n) {
      if (m_.format == Format::llama) l.w_up(p_.constant, n) = 1 / kConstant;
      for (const int feature : p_.junk) write(l.w_out, n, feature, 0.3 * normal_());
    }
  }

  void add_neuron(const Neuron& neuron, int n, LayerMatrices& l) {
    const double scale = m_.format == Format::gpt2 ? 1 : kGate;
    for (const auto& [feature, weight] : neuron.in)
      l.w_in(feature, n) += scale * read_weight(feature, weight);
    if (m_.format == Format::gpt2) {
      l.b_in[n] = neuron.bias;
    } else {
      l.w_in(p_.constant, n) += scale * neuron.bias / kConstant;
      l.w_up(p_.constant, n) = 1 / (kGate * kConstant);
    }
    for (const auto& [feature, weight] : neuron.out) write(l.w_out, n, feature, weight);
  }

  void add_noise(Matrix& w) {
    if (settings_.noise == 0) return;
    double square = 0;
    for (const double x : w.values) square += std::fabs(x) < kConstant ? x * x : 0;
    const double size =
        settings_.noise * std::sqrt(square / (std::max<std::size_t>(1, w.values.size())));
    for (double& x : w.values) x += size * normal_();
  }

  const Program& p_;
  const Settings& settings_;
  Normal normal_;
  CompiledModel m_;
  int opposite_ = -1, balance_ = -1;
};

}  // namespace

CompiledModel compile(const Program& program, const Settings& settings) {
  return Compiler(program, settings).run();
}

std::string CompiledModel::config_json() const {
  OrderedJson c;
  if (format == Format::gpt2) {
    c = {{"model_type", "gpt2"},
         {"architectures", {"GPT2LMHeadModel"}},
         {"activation_function", "relu"},
         {"layer_norm_epsilon", eps},
         {"n_positions", length},
         {"n_embd", d_model},
         {"n_head", n_heads},
         {"n_inner", d_mlp},
         {"n_layer", n_layers()},
         {"vocab_size", vocabulary},
         {"tie_word_embeddings", false},
         {"torch_dtype", "float32"}};
  } else {
    c = {{"model_type", "llama"},
         {"architectures", {"LlamaForCausalLM"}},
         {"hidden_act", "silu"},
         {"hidden_size", d_model},
         {"head_dim", d_head},
         {"intermediate_size", d_mlp},
         {"max_position_embeddings", length},
         {"num_attention_heads", n_heads},
         {"num_key_value_heads", n_heads},
         {"num_hidden_layers", n_layers()},
         {"rms_norm_eps", eps},
         {"rope_theta", theta},
         {"attention_bias", false},
         {"mlp_bias", false},
         {"vocab_size", vocabulary},
         {"tie_word_embeddings", false},
         {"torch_dtype", "float32"}};
  }
  return c.dump(2) + "\n";
}

std::map<std::string, std::vector<float>> CompiledModel::tensors(
    std::map<std::string, std::vector<std::int64_t>>& shapes) const {
  std::map<std::string, std::vector<float>> out;
  const auto put = [&](const std::string& name, std::vector<std::int64_t> shape,
                       const std::vector<double>& values) {
    shapes[name] = std::move(shape);
    out[name].assign(values.begin(), values.end());
  };
  const auto matrix = [&](const std::string& name, const Matrix& w) {
    put(name, {w.rows, w.cols}, w.values);
  };
  const auto transposed = [&](const std::string& name, const Matrix& w) {
    Matrix t(w.cols, w.rows);
    for (int r = 0; r < w.rows; ++r) {
      for (int c = 0; c < w.cols; ++c) t(c, r) = w(r, c);
    }
    matrix(name, t);
  };
  const std::vector<double> zeros(std::max(3 * d_model, d_mlp), 0.0);
  const auto zero = [&](const std::string& name, int n) {
    put(name, {n}, {zeros.begin(), zeros.begin() + n});
  };
  if (format == Format::gpt2) {
    matrix("wte.weight", embed);
    matrix("wpe.weight", pos);
    put("ln_f.weight", {d_model}, norm);
    zero("ln_f.bias", d_model);
  } else {
    matrix("model.embed_tokens.weight", embed);
    put("model.norm.weight", {d_model}, norm);
  }
  matrix("lm_head.weight", unembed);
  for (int i = 0; i < n_layers(); ++i) {
    const LayerMatrices& l = layers[i];
    if (format == Format::gpt2) {
      const std::string at = fmt::format("h.{}.", i);
      for (const char* ln : {"ln_1", "ln_2"}) {
        put(at + ln + ".weight", {d_model}, norm);
        zero(at + ln + ".bias", d_model);
      }
      Matrix qkv(d_model, 3 * d_model);
      for (int r = 0; r < d_model; ++r) {
        for (int c = 0; c < d_model; ++c) {
          qkv(r, c) = l.w_q(r, c);
          qkv(r, d_model + c) = l.w_k(r, c);
          qkv(r, 2 * d_model + c) = l.w_v(r, c);
        }
      }
      matrix(at + "attn.c_attn.weight", qkv);
      zero(at + "attn.c_attn.bias", 3 * d_model);
      matrix(at + "attn.c_proj.weight", l.w_o);
      zero(at + "attn.c_proj.bias", d_model);
      matrix(at + "mlp.c_fc.weight", l.w_in);
      put(at + "mlp.c_fc.bias", {d_mlp}, l.b_in);
      matrix(at + "mlp.c_proj.weight", l.w_out);
      zero(at + "mlp.c_proj.bias", d_model);
    } else {
      const std::string at = fmt::format("model.layers.{}.", i);
      put(at + "input_layernorm.weight", {d_model}, norm);
      put(at + "post_attention_layernorm.weight", {d_model}, norm);
      transposed(at + "self_attn.q_proj.weight", l.w_q);
      transposed(at + "self_attn.k_proj.weight", l.w_k);
      transposed(at + "self_attn.v_proj.weight", l.w_v);
      transposed(at + "self_attn.o_proj.weight", l.w_o);
      transposed(at + "mlp.gate_proj.weight", l.w_in);
      transposed(at + "mlp.up_proj.weight", l.w_up);
      transposed(at + "mlp.down_proj.weight", l.w_out);
    }
  }
  return out;
}

Model CompiledModel::open(const LoadOptions& load) const {
  struct Owner {
    std::map<std::string, std::vector<std::int64_t>> shapes;
    std::map<std::string, std::vector<float>> values;
  };
  const auto owner = std::make_shared<Owner>();
  owner->values = tensors(owner->shapes);
  std::map<std::string, TensorRef> refs;
  for (const auto& [name, values] : owner->values) {
    TensorRef ref;
    ref.data = values.data();
    ref.dtype = DType::f32;
    ref.shape = owner->shapes.at(name);
    refs[name] = std::move(ref);
  }
  return Model::from_tensors(config_json(), refs, owner, load);
}

void CompiledModel::save(const std::filesystem::path& folder) const {
  std::map<std::string, std::vector<std::int64_t>> shapes;
  const auto values = tensors(shapes);
  std::map<std::string, model::StoredTensor> stored;
  for (const auto& [name, v] : values)
    stored[name] = {name, DType::f32, shapes.at(name), reinterpret_cast<const std::byte*>(v.data()),
                    v.size() * sizeof(float)};
  model::save_folder(config_json(), stored, folder);
}

}  // namespace unpack::experiments::compiled
