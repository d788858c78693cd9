// Memory, weights and the forward pass of the host backends. Part of host_backend.cc.

namespace unpack {

namespace {

// fp32 weights up to this size stay in panels for good; larger models convert a layer at a time.
constexpr std::size_t kKeepBytes = std::size_t{4} << 30;
constexpr std::int64_t kRowBlock = 128;
constexpr std::int64_t kVocabularyBlock = 512;

std::shared_ptr<void> aligned_block(std::size_t bytes) {
  constexpr std::size_t kAlign = 64;
  const std::size_t padded = (std::max<std::size_t>(bytes, 1) + kAlign - 1) / kAlign * kAlign;
  void* p = std::aligned_alloc(kAlign, padded);
  if (!p)
    throw InputError("not enough memory for " + std::to_string(bytes >> 20) +
                     " MiB; use a shorter prompt or a smaller model");
  return {p, [](void* q) { std::free(q); }};
}

}  // namespace

template <typename T>
HostBackend<T>::HostBackend(std::shared_ptr<const ModelWeights> weights,
                            const BackendOptions& options)
    : weights_(std::move(weights)),
      writers_(weights_->config),
      pool_(options.threads),
      products_(options.weight_products ? 2 * static_cast<std::size_t>(weights_->config.n_layers)
                                        : 0) {
  config_ = weights_->config;
  const auto& c = config_;
  layers_.resize(static_cast<std::size_t>(c.n_layers));
  const std::size_t per_layer =
      sizeof(T) * static_cast<std::size_t>(c.d_model) *
      (2 * static_cast<std::size_t>(c.n_heads * c.d_head) +
       2 * static_cast<std::size_t>(c.n_kv_heads * c.d_head) +
       static_cast<std::size_t>(c.gated() ? 3 : 2) * static_cast<std::size_t>(c.d_mlp));
  const std::size_t budget =
      std::max<std::size_t>(2, kKeepBytes / std::max<std::size_t>(per_layer, 1));
  keep_layers_ = std::min(budget, layers_.size());
  // A model that does not fit is walked in layer order over and over: keeping few layers loses
  // nothing.
  if (keep_layers_ < layers_.size()) keep_layers_ = 2;
  final_w_ = read_vector<T>(weights_->final_norm.w);
  final_b_ = read_vector<T>(weights_->final_norm.b);
}

template <typename T>
std::shared_ptr<const LayerPanels<T>> HostBackend<T>::layer(int index) {
  const auto i = static_cast<std::size_t>(index);
  std::unique_lock lock(mutex_);
  if (layers_[i]) {
    if (keep_layers_ < layers_.size()) {
      recent_.remove(index);
      recent_.push_front(index);
    }
    return layers_[i];
  }
  lock.unlock();
  const LayerWeights& w = weights_->layers[i];
  auto made = std::make_shared<const LayerPanels<T>>(make_layer_panels<T>(config_, w));
  // Only single precision is let go: half-precision pages are read again when the layer is
  // converted anew, and cost little.
  if (weights_->release && config_.dtype == DType::f32 && keep_layers_ == layers_.size()) {
    for (const WeightView* v : {&w.w_q, &w.w_k, &w.w_v, &w.w_o, &w.w_in, &w.w_up, &w.w_out}) {
      if (!*v) continue;
      const std::int64_t last = v->offset(v->in - 1, v->out - 1) + 1;
      weights_->release(weights_->storage.get(), v->data,
                        static_cast<std::size_t>(last) * dtype_size(v->dtype));
    }
  }
  lock.lock();
  if (!layers_[i]) {
    layers_[i] = made;
    if (keep_layers_ < layers_.size()) {
      recent_.push_front(index);
      while (recent_.size() > keep_layers_) {
        layers_[static_cast<std::size_t>(recent_.back())].reset();
        recent_.pop_back();
      }
    }
  }
  return made;
}

// Memory
// --------------------------------------------------------------------------------------------------------------------------

template <typename T>
Array HostBackend<T>::uninitialized(std::int64_t size) {
  return Array(aligned_block(static_cast<std::size_t>(size) * sizeof(T)), size);
}

template <typename T>
Array HostBackend<T>::zeros(std::int64_t size) {
  Array a = uninitialized(size);
  std::memset(a.raw(), 0, static_cast<std::size_t>(size) * sizeof(T));
  return a;
}

template <typename T>
Array HostBackend<T>::slice(const Array& from, std::int64_t offset, std::int64_t size) {
  return Array(std::shared_ptr<void>(std::make_shared<Array>(from), ptr(from) + offset), size);
}

template <typename T>
void HostBackend<T>::upload(Array& to, std::int64_t offset, std::span<const double> from) {
  std::copy(from.begin(), from.end(), ptr(to) + offset);
}

template <typename T>
void HostBackend<T>::download(const Array& from, std::int64_t offset, std::span<double> to) {
  const T* p = ptr(from) + offset;
  std::copy(p, p + to.size(), to.begin());
}

template <typename T>
void HostBackend<T>::copy(const Array& from, std::int64_t from_offset, Array& to,
                          std::int64_t to_offset, std::int64_t size) {
  std::copy_n(ptr(from) + from_offset, size, ptr(to) + to_offset);
}

template <typename T>
std::shared_ptr<const void> HostBackend<T>::host(const Array& from) {
  return std::shared_ptr<const void>(std::make_shared<Array>(from), from.raw());
}

// Products with weights
// -----------------------------------------------------------------------------------------------------------

template <typename T>
void HostBackend<T>::multiply(std::span<const Product> products, const T* a, std::int64_t m) {
  // Few rows make few tasks: half a panel each, so that no thread waits long for another's last
  // one. The cut never depends on the number of threads.
  constexpr std::int64_t kFewRows = 64;
  const std::int64_t parts = m <= kFewRows ? 2 : 1;
  const std::int64_t blocks = (m + kRowBlock - 1) / kRowBlock;
  std::vector<std::int64_t> first(products.size() + 1, 0);
  for (std::size_t i = 0; i < products.size(); ++i)
    first[i + 1] = first[i] + products[i].w->count() * parts * blocks;
  pool_.parallel_for(first.back(), [&](std::int64_t task) {
    const auto i = static_cast<std::size_t>(std::upper_bound(first.begin(), first.end(), task) -
                                            first.begin()) -
                   1;
    const Panels<T>& w = *products[i].w;
    const std::int64_t at = task - first[i];
    const std::int64_t p = at / blocks / parts;
    const std::int64_t half = (w.columns(p) + parts - 1) / parts;
    const std::int64_t column = at / blocks % parts * half;
    const std::int64_t columns = std::min(half, w.columns(p) - column);
    if (columns <= 0) return;
    const std::int64_t row = at % blocks * kRowBlock;
    const std::int64_t rows = std::min(kRowBlock, m - row);
    T* to = products[i].c + row * w.out + w.begin(p) + column;
    gemm(false, rows, columns, w.in, a + row * w.in, w.in, w.panel(p) + column, w.columns(p), false,
         to, w.out);
    if (products[i].bias->empty()) return;
    const T* b = products[i].bias->data() + w.begin(p) + column;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t j = 0; j < columns; ++j) to[r * w.out + j] += b[j];
    }
  });
}

template <typename T>
void HostBackend<T>::multiply(const Panels<T>& w, const T* a, std::int64_t m,
                              const std::vector<T>& bias, T* c) {
  const Product product = {&w, &bias, c};
  multiply(std::span(&product, 1), a, m);
}

template <typename T>
void HostBackend<T>::multiply_transposed(const Panels<T>& w, const T* a, std::int64_t m, T* c) {
  constexpr std::int64_t kColumns = 128;
  const std::int64_t columns = (w.in + kColumns - 1) / kColumns;
  const std::int64_t blocks = (m + kRowBlock - 1) / kRowBlock;
  pool_.parallel_for(columns * blocks, [&](std::int64_t task) {
    const std::int64_t col = task / blocks * kColumns;
    const std::int64_t row = task % blocks * kRowBlock;
    const std::int64_t rows = std::min(kRowBlock, m - row);
    const std::int64_t n = std::min(kColumns, w.in - col);
    for (std::int64_t p = 0; p < w.count(); ++p) {
      gemm(true, rows, n, w.columns(p), a + row * w.out + w.begin(p), w.out,
           w.panel(p) + col * w.columns(p), w.columns(p), p > 0, c + row * w.in + col, w.in);
    }
  });
}

template <typename T>
void HostBackend<T>::head_to_model(const Panels<T>& w, int head, const T* a, std::int64_t lda,
                                   std::int64_t m, T* c, std::int64_t ldc) {
  const std::int64_t column = static_cast<std::int64_t>(head) * config_.d_head;
  const std::int64_t p = column / w.width;
  gemm(true, m, w.in, config_.d_head, a, lda, w.panel(p) + (column - w.begin(p)), w.columns(p),
       false, c, ldc);
}

// Forward pass
// --------------------------------------------------------------------------------------------------------------------

template <typename T>
void HostBackend<T>::embed(std::span<const TokenId> ids, Array& out) {
  for (std::size_t i = 0; i < ids.size(); ++i)
    read_rows(weights_->embed, ids[i], 1,
              ptr(out) + static_cast<std::int64_t>(i) * config_.d_model);
}

template <typename T>
void HostBackend<T>::embed_positions(std::span<const int> positions, Array& out) {
  for (std::size_t i = 0; i < positions.size(); ++i)
    read_rows(weights_->pos, positions[i], 1,
              ptr(out) + static_cast<std::int64_t>(i) * config_.d_model);
}

template <typename T>
void HostBackend<T>::add(const Array& x, Array& y, std::int64_t size, double scale) {
  axpy(size, static_cast<T>(scale), ptr(x), ptr(y));
}

template <typename T>
void HostBackend<T>::add_rows(const Array& x, std::int64_t x_row, Array& y, std::int64_t y_row,
                              std::int64_t rows, int cols, double scale) {
  axpy(rows * cols, static_cast<T>(scale), ptr(x) + x_row * cols, ptr(y) + y_row * cols);
}

template <typename T>
void HostBackend<T>::add_bias(int index, Sublayer sublayer, Array& x, std::int64_t rows) {
  const auto w = layer(index);
  const std::vector<T>& bias = sublayer == Sublayer::attention ? w->b_o : w->b_out;
  if (bias.empty()) return;
  for (std::int64_t r = 0; r < rows; ++r)
    axpy<T>(config_.d_model, T(1), bias.data(), ptr(x) + r * config_.d_model);
}

template <typename T>
void HostBackend<T>::normalize(const Array& x, std::int64_t rows, Array& out, Array& dev) {
  const std::int64_t d = config_.d_model;
  pool_.parallel_for((rows + 7) / 8, [&](std::int64_t block) {
    for (std::int64_t r = block * 8; r < std::min(rows, block * 8 + 8); ++r) {
      const T* in = ptr(x) + r * d;
      T* to = ptr(out) + r * d;
      double mean = 0;
      if (config_.norm == Norm::layer) {
        for (std::int64_t i = 0; i < d; ++i) mean += static_cast<double>(in[i]);
        mean /= static_cast<double>(d);
      }
      double square = 0;
      for (std::int64_t i = 0; i < d; ++i)
        square += (static_cast<double>(in[i]) - mean) * (static_cast<double>(in[i]) - mean);
      const double deviation = std::sqrt(square / static_cast<double>(d) + config_.norm_eps);
      for (std::int64_t i = 0; i < d; ++i)
        to[i] = static_cast<T>((static_cast<double>(in[i]) - mean) / deviation);
      ptr(dev)[r] = static_cast<T>(deviation);
    }
  });
}

template <typename T>
std::shared_ptr<const typename HostBackend<T>::RotaryTable> HostBackend<T>::rotary(
    std::int64_t positions) {
  if (config_.positions != Positions::rotary) return nullptr;
  std::lock_guard lock(mutex_);
  if (rotary_ && rotary_->positions >= positions) return rotary_;
  const Rope& rope = config_.rope;
  const int half = rope.dims / 2;
  auto table = std::make_shared<RotaryTable>();
  table->positions = std::max<std::int64_t>(positions, 64);
  table->cos.resize(static_cast<std::size_t>(table->positions * half));
  table->sin.resize(table->cos.size());
  const std::vector<double> frequencies = rotary_frequencies(rope);
  for (int i = 0; i < half; ++i) {
    const double frequency = frequencies[static_cast<std::size_t>(i)];
    for (std::int64_t s = 0; s < table->positions; ++s) {
      const auto at = static_cast<std::size_t>(s * half + i);
      table->cos[at] = static_cast<T>(std::cos(static_cast<double>(s) * frequency));
      table->sin[at] = static_cast<T>(std::sin(static_cast<double>(s) * frequency));
    }
  }
  rotary_ = table;
  return rotary_;
}

template <typename T>
void HostBackend<T>::rotate(const RotaryTable& table, std::int64_t position, T* x,
                            bool inverse) const {
  const int half = config_.rope.dims / 2;
  const T* cos = table.cos.data() + position * half;
  const T* sin = table.sin.data() + position * half;
  const T sign = inverse ? T(-1) : T(1);
  for (int i = 0; i < half; ++i) {
    const T a = x[i];
    const T b = x[i + half];
    x[i] = a * cos[i] - sign * b * sin[i];
    x[i + half] = b * cos[i] + sign * a * sin[i];
  }
}

template <typename T>
void HostBackend<T>::qkv(int index, const Array& normalized, std::span<const int> positions,
                         Array& q, Array& k, Array& v, Array& q_dev, Array& k_dev) {
  const auto w = layer(index);
  const auto rows = static_cast<std::int64_t>(positions.size());
  const std::array<Product, 3> products = {
      {{&w->q, &w->b_q, ptr(q)}, {&w->k, &w->b_k, ptr(k)}, {&w->v, &w->b_v, ptr(v)}}};
  multiply(products, ptr(normalized), rows);
  const int max_position =
      positions.empty() ? 0 : *std::max_element(positions.begin(), positions.end());
  const auto table = rotary(max_position + 1);
  const auto finish = [&](Array& x, int heads, const std::vector<T>& norm, Array& dev) {
    for (std::int64_t r = 0; r < rows; ++r) {
      for (int h = 0; h < heads; ++h) {
        T* head = ptr(x) + (r * heads + h) * config_.d_head;
        if (!norm.empty()) {
          double square = 0;
          for (int e = 0; e < config_.d_head; ++e)
            square += static_cast<double>(head[e]) * static_cast<double>(head[e]);
          const double deviation = std::sqrt(square / config_.d_head + config_.norm_eps);
          for (int e = 0; e < config_.d_head; ++e)
            head[e] = static_cast<T>(static_cast<double>(head[e]) / deviation) *
                      norm[static_cast<std::size_t>(e)];
          ptr(dev)[r * heads + h] = static_cast<T>(deviation);
        }
        if (table) rotate(*table, positions[static_cast<std::size_t>(r)], head, false);
      }
    }
  };
  finish(q, config_.n_heads, w->q_norm, q_dev);
  finish(k, config_.n_kv_heads, w->k_norm, k_dev);
}

template <typename T>
void HostBackend<T>::attention(const Array& q, const Array& k, const Array& v,
                               std::span<const Segment> segments,
                               std::span<const std::int64_t> key_begin, Array& pattern, Array& z) {
  const int heads = config_.n_heads;
  const std::int64_t e = config_.d_head;
  const std::int64_t q_row = heads * e;
  const std::int64_t kv_row = static_cast<std::int64_t>(config_.n_kv_heads) * e;
  const T scale = static_cast<T>(1.0 / std::sqrt(static_cast<double>(e)));
  std::vector<std::int64_t> pattern_begin(segments.size() + 1, 0);
  for (std::size_t i = 0; i < segments.size(); ++i)
    pattern_begin[i + 1] = pattern_begin[i] + heads * tri(segments[i].length);
  pool_.parallel_for(static_cast<std::int64_t>(segments.size()) * heads, [&](std::int64_t task) {
    const auto index = static_cast<std::size_t>(task / heads);
    const auto h = task % heads;
    const Segment& segment = segments[index];
    const std::int64_t keys = segment.past + segment.length;
    const std::int64_t g = h / config_.group_size();
    const T* qh = ptr(q) + segment.begin * q_row + h * e;
    const T* kh = ptr(k) + key_begin[index] * kv_row + g * e;
    const T* vh = ptr(v) + key_begin[index] * kv_row + g * e;
    T* zh = ptr(z) + segment.begin * q_row + h * e;
    // A block of queries at a time keeps the logits of long prompts in cache.
    constexpr std::int64_t kQueries = 64;
    std::vector<T> logits(
        static_cast<std::size_t>(std::min<std::int64_t>(kQueries, segment.length) * keys));
    for (std::int64_t begin = 0; begin < segment.length; begin += kQueries) {
      const std::int64_t n = std::min<std::int64_t>(kQueries, segment.length - begin);
      const std::int64_t reach = segment.past + begin + n;
      gemm(true, n, reach, e, qh + begin * q_row, q_row, kh, kv_row, false, logits.data(), keys);
      for (std::int64_t i = 0; i < n; ++i) {
        T* row = logits.data() + i * keys;
        const std::int64_t seen = segment.past + begin + i + 1;
        softmax_row(row, seen, scale);
        std::fill(row + seen, row + reach, T(0));
        if (!pattern.empty())
          std::copy_n(
              row, seen,
              ptr(pattern) + pattern_begin[index] + h * tri(segment.length) + tri(begin + i));
      }
      gemm(false, n, e, reach, logits.data(), keys, vh, kv_row, false, zh + begin * q_row, q_row);
    }
  });
}

template <typename T>
void HostBackend<T>::attention_out(int index, const Array& z, std::int64_t rows, Array& out) {
  multiply(layer(index)->o, ptr(z), rows, {}, ptr(out));
}

template <typename T>
void HostBackend<T>::mlp_in(int index, MlpSide side, const Array& normalized, std::int64_t rows,
                            Array& out) {
  const auto w = layer(index);
  if (side == MlpSide::gate) {
    multiply(w->in, ptr(normalized), rows, w->b_in, ptr(out));
  } else {
    multiply(w->up, ptr(normalized), rows, w->b_up, ptr(out));
  }
}

template <typename T>
void HostBackend<T>::activate(const Array& pre, const Array& up, Array& act, std::int64_t size) {
  constexpr std::int64_t kBlock = 4096;
  pool_.parallel_for((size + kBlock - 1) / kBlock, [&](std::int64_t block) {
    const std::int64_t begin = block * kBlock;
    const std::int64_t n = std::min(kBlock, size - begin);
    activate_run(config_.activation, ptr(pre) + begin, ptr(act) + begin, n);
    if (!up.empty()) {
      for (std::int64_t i = begin; i < begin + n; ++i) ptr(act)[i] *= ptr(up)[i];
    }
  });
}

template <typename T>
void HostBackend<T>::mlp_out(int index, const Array& act, std::int64_t rows, Array& out) {
  multiply(layer(index)->out, ptr(act), rows, {}, ptr(out));
}

template <typename T>
void HostBackend<T>::logits(const Array& x, std::span<const std::int64_t> rows,
                            std::vector<double>& out) {
  const std::int64_t d = config_.d_model;
  const auto n = static_cast<std::int64_t>(rows.size());
  Array picked = uninitialized(n * d);
  for (std::int64_t i = 0; i < n; ++i)
    copy(x, rows[static_cast<std::size_t>(i)] * d, picked, i * d, d);
  Array normalized = uninitialized(n * d);
  Array dev = uninitialized(n);
  normalize(picked, n, normalized, dev);
  for (std::int64_t i = 0; i < n; ++i) {
    T* row = ptr(normalized) + i * d;
    for (std::int64_t j = 0; j < d; ++j) {
      row[j] = row[j] * final_w_[static_cast<std::size_t>(j)] +
               (final_b_.empty() ? T(0) : final_b_[static_cast<std::size_t>(j)]);
    }
  }
  const std::int64_t vocabulary = config_.vocab_size;
  out.assign(static_cast<std::size_t>(n * vocabulary), 0.0);
  const WeightView& w = weights_->unembed;
  const bool direct = sizeof(T) == 4 && w.dtype == DType::f32 && w.out_stride == 1 &&
                      w.in_stride == d &&
                      reinterpret_cast<std::uintptr_t>(w.data) % alignof(T) == 0;
  pool_.parallel_for(
      (vocabulary + kVocabularyBlock - 1) / kVocabularyBlock, [&](std::int64_t block) {
        const std::int64_t first = block * kVocabularyBlock;
        const std::int64_t count = std::min(kVocabularyBlock, vocabulary - first);
        std::vector<T> converted;
        const T* table;
        if (direct) {
          table = reinterpret_cast<const T*>(w.data) + first * d;
        } else {
          converted.resize(static_cast<std::size_t>(count * d));
          read_rows(w, first, count, converted.data());
          table = converted.data();
        }
        std::vector<T> tile(static_cast<std::size_t>(n * count));
        gemm(true, n, count, d, ptr(normalized), d, table, d, false, tile.data(), count);
        for (std::int64_t i = 0; i < n; ++i)
          std::copy_n(tile.data() + i * count, count, out.data() + i * vocabulary + first);
      });
}

}  // namespace unpack
