// Convolution, bias, max-pool and ReLU as one layer.
//
// Forward: the pixels of a pooling window are computed together by the dense tile and pooled at once; only the largest
// value and where it came from (its patch of the input, or -1 where ReLU zeroes it) are kept: the winners.
// Backward: gradients flow only through winners, so both products run over lists of them instead of over every pixel.
// That is exact, and with a 2 x 2 pool at least four times less arithmetic.
// Many channels go forward through Winograd's sums instead of the dense tile; the first convolution, with its few taps,
// goes backward pixel by pixel instead of by lists.
// Without a pool the window is one pixel, without a ReLU no winner is dropped: nothing else changes.
#pragma once
#include <algorithm>
#include <numeric>

#include "layer.hpp"
#include "tile.hpp"
#include "winners.hpp"
#include "winograd.hpp"

namespace feddag {

struct ConvShape {
    std::string name;
    int in, out, kernel, stride;
    bool bias;
    int pool = 1, pool_stride = 1;
    bool relu = false;
};

template <class T> class Conv final : public Layer<T> {
public:
    Conv(const ConvShape& shape, Layout input, Layout output, int batch) : s_(shape) {
        in = input;
        out = output;
        row_ = in.width() * in.stored;
        patch_row_ = s_.kernel * in.stored;
        kernel_rows_ = in.rows(s_.kernel);
        patch_ = kernel_rows_ * round_up(patch_row_, L);
        channels_ = round_up(out.c, L);
        vectors_ = panel_vectors<T>(channels_);
        width_ = vectors_ * L;
        rows_ = tile_rows(vectors_);
        lay_out_parameters();
        lay_out_windows();
        group_ = rows_ / std::gcd(rows_, int(window_.size()));
        packed_ = Buffer<T>(std::size_t(kernel_rows_) * patch_row_ * channels_);
        const bool square = !in.series && s_.stride == 1 && s_.pool == s_.pool_stride;
        const Winograd<T>* sums = square ? Winograd<T>::find(s_.kernel) : nullptr;
        if (sums && sums->suits(in, out, s_.pool))
            winograd_ = std::make_unique<WinogradForward<T>>(*sums, in, out, s_.pool, vectors_);
        left_.resize(group_ * window_.size());
        pixels_ = Buffer<T>(group_ * window_.size() * width_);
        winner_ = Buffer<Index<T>>(std::size_t(batch) * origin_.size() * channels_);
        surplus_ = Buffer<Index<T>>(channels_);
        std::fill(surplus_.data() + out.c, surplus_.data() + channels_, Index<T>(-1));
        // Enough winners per channel to be worth loading and storing its gradient, few enough samples to stay in cache.
        samples_ = std::clamp(32 / int(origin_.size()), 1, batch);
        winners_ = WinnerLists<T>(samples_ * int(origin_.size()), int(window_.size()), channels_);
    }

    const char* way() const override { return winograd_ ? "winograd" : "tiles"; }

    void refresh() override {
        const int stride = patch_ / kernel_rows_;
        T* to = packed_.data();
        for (int panel = 0; panel < channels_; panel += width_)
            for (int ky = 0; ky < kernel_rows_; ky++)
                for (int t = 0; t < patch_row_; t++, to += width_) {
                    const T* from = params[0].value.data() + std::size_t(panel) * patch_ + ky * stride + t;
                    for (int c = 0; c < width_; c++) to[c] = from[std::size_t(c) * patch_];
                }
        if (winograd_) winograd_->refresh(packed_.data());
    }

    void forward(const T* x, T* y, const Pass& pass) override {
        const int windows = int(origin_.size()), all = pass.batch * windows, pixels = int(window_.size());
        const T* bias = s_.bias ? params[1].value.data() : bias_.data();
        const auto window_done = [&](int sample, int w, int panel, const T* computed) {
            pool(computed, surplus_.data() + panel, Index<T>(origin_[w]), y + sample * out.size() + target_[w] + panel,
                 winner_.data() + (std::size_t(sample) * windows + w) * channels_ + panel);
        };
        if (winograd_) return winograd_->forward(x, bias, pass.batch, window_done);
        const Inner inner{kernel_rows_, patch_row_, 1, row_};
        for (int panel = 0; panel < channels_; panel += width_) {
            const T* weights = packed_.data() + std::size_t(panel) * kernel_rows_ * patch_row_;
            for (int first = 0; first < all; first += group_) {
                const int count = std::min(group_, all - first);
                for (int i = 0; i < count; i++) {
                    const int sample = (first + i) / windows, w = (first + i) % windows;
                    for (int p = 0; p < pixels; p++)
                        left_[i * pixels + p] = x + sample * in.size() + origin_[w] + window_[p];
                }
                for (int p = 0; p < count * pixels; p += rows_) {
                    const int rows = std::min(rows_, count * pixels - p);
                    tile_for<T>(rows, vectors_)(&left_[p], inner, weights, bias + panel, pixels_.data() + p * width_,
                                                width_);
                }
                for (int i = 0; i < count; i++)
                    window_done((first + i) / windows, (first + i) % windows, panel,
                                pixels_.data() + i * pixels * width_);
            }
        }
    }

    void backward(const T* x, const T*, T* gy, T* gx, const Pass& pass) override {
        const int windows = int(origin_.size());
        if (gx) std::memset(static_cast<void*>(gx), 0, pass.batch * in.size() * sizeof(T));
        if (pass.sgd)
            for (auto& p : params) p.grad.clear();
        if (!gx && few_taps_) return add_by_taps(x, gy, pass);
        for (int first = 0; first < pass.batch; first += samples_) {
            const int count = std::min(samples_, pass.batch - first);
            winners_.clear();
            for (int q = 0; q < count; q++)
                for (int w = 0; w < windows; w++)
                    winners_.add(gy + (first + q) * out.size() + target_[w],
                                 winner_.data() + (std::size_t(first + q) * windows + w) * channels_, out.c,
                                 q * in.size(), origin_[w], window_);
            if (gx) winners_.scatter_patches(params[0].value.data(), shift_, gx + first * in.size());
            if (!pass.sgd) continue;
            winners_.sort_by_channel();
            if (s_.bias)
                add_bias_grad(gy + first * out.size(), winner_.data() + std::size_t(first) * windows * channels_,
                                  count);
            winners_.add_patches(x + first * in.size(), shift_, params[0].grad.data());
        }
        if (pass.sgd) clear_surplus(params[0].grad.data());
    }

    using Layer<T>::in;
    using Layer<T>::out;
    using Layer<T>::params;

private:
    static constexpr int L = kLanes<T>;

    void lay_out_parameters() {
        const int k = s_.kernel, stride = patch_ / kernel_rows_;
        std::vector<std::int64_t> shape{s_.out, s_.in, k, k};
        if (in.series) shape.pop_back();
        params.resize(s_.bias ? 2 : 1);
        params[0].lay_out(s_.name + ".weight", shape, std::size_t(channels_) * patch_);
        std::size_t i = 0;
        for (int o = 0; o < s_.out; o++)
            for (int c = 0; c < s_.in; c++)
                for (int ky = 0; ky < kernel_rows_; ky++)
                    for (int kx = 0; kx < k; kx++)
                        params[0].offset[i++] = o * patch_ + ky * stride + kx * in.stored + c;
        bias_ = Buffer<T>(channels_);
        if (!s_.bias) return;
        params[1].lay_out(s_.name + ".bias", {s_.out}, channels_);
        std::iota(params[1].offset.begin(), params[1].offset.end(), 0);
    }

    void lay_out_windows() {
        for (int y = 0; y < in.rows(s_.pool); y++)
            for (int x = 0; x < s_.pool; x++) window_.push_back(s_.stride * (y * row_ + x * in.stored));
        for (int y = 0; y < out.h; y++)
            for (int x = 0; x < out.w; x++) {
                origin_.push_back(s_.pool_stride * s_.stride * (y * row_ + x * in.stored));
                target_.push_back(int(out.at(y, x)));
            }
        for (int ky = 0; ky < kernel_rows_; ky++) {
            for (int v = 0; v < patch_ / kernel_rows_; v += L) shift_.push_back(ky * row_ + v);
            for (int t = 0; t < patch_row_; t++) tap_.push_back(ky * row_ + t);
        }
        few_taps_ = tap_.size() * window_.size() <= 3 * L * shift_.size();
    }

    // The largest of the window's pixels, channel by channel; the first of equals, as in PyTorch.
    void pool(const T* pixels, const Index<T>* surplus, Index<T> origin, T* y, Index<T>* winner) const {
        using Ints = Vec<Index<T>>;
        for (int c = 0; c < width_; c += L) {
            Vec<T> best = load(pixels + c);
            Ints from = splat<Index<T>>(0);
            for (std::size_t p = 1; p < window_.size(); p++) {
                const Vec<T> value = load(pixels + p * width_ + c);
                const Ints larger = value > best;
                best = larger ? value : best;
                from = larger ? splat<Index<T>>(window_[p]) : from;
            }
            from = (from + origin) | load(surplus + c);
            if (s_.relu) {
                const Ints dead = best <= Vec<T>{};  // not !(best > 0): a NaN stays visible
                best = dead ? Vec<T>{} : best;
                from = dead ? splat<Index<T>>(-1) : from;
            }
            if (out.stored < L)
                std::memcpy(y, &best, out.stored * sizeof(T));
            else
                store(y + c, best);
            store(winner + c, from);
        }
    }

    void add_by_taps(const T* x, const T* gy, const Pass& pass) {
        if (!pass.sgd) return;
        static constexpr auto add = tap_adders<T>(std::make_integer_sequence<int, kTaps>());
        const Windows windows{origin_, target_, window_, pass.batch, channels_, in.size(), out.size()};
        T sums[kTaps * L];
        for (int c = 0; c < channels_; c += L)
            in_chunks(int(tap_.size()), kTaps, [&](int first, int taps) {
                add[taps - 1](x, gy + c, winner_.data() + c, windows, &tap_[first], sums);
                for (int t = first; t < first + taps; t++) {
                    const int offset = t / patch_row_ * (patch_ / kernel_rows_) + t % patch_row_;
                    T* grad = params[0].grad.data() + c * patch_ + offset;
                    for (int lane = 0; lane < L; lane++) grad[lane * patch_] = sums[(t - first) * L + lane];
                }
            });
        if (s_.bias) add_bias_grad(gy, winner_.data(), pass.batch);
    }

    void add_bias_grad(const T* gy, const Index<T>* winner, int samples) {
        for (int c = 0; c < channels_; c += L) {
            T* grad = params[1].grad.data() + c;
            const Index<T>* from = winner + c;
            Vec<T> sum = load(grad);
            for (int q = 0; q < samples; q++)
                for (int target : target_) {
                    const Vec<Index<T>> dead = load(from) < Vec<Index<T>>{};
                    sum += dead ? Vec<T>{} : load(gy + q * out.size() + target + c);
                    from += channels_;
                }
            store(grad, sum);
        }
    }

    // A patch row is read in whole vectors; what lies beyond its end is not part of the patch.
    void clear_surplus(T* grad) const {
        const int stride = patch_ / kernel_rows_;
        if (stride == patch_row_) return;
        for (int row = 0; row < channels_ * kernel_rows_; row++)
            std::fill(grad + std::size_t(row) * stride + patch_row_, grad + std::size_t(row + 1) * stride,
                      T(0));
    }

    ConvShape s_;
    int row_, patch_row_, patch_;       // elements of an input row, of a patch's row, of a patch in whole vectors
    int kernel_rows_;                   // 1 over a series
    int channels_;                      // output channels in whole vectors
    int vectors_, width_, rows_;        // a panel of them, and how many pixels of it are computed at once
    int group_, samples_;               // windows computed together, samples whose winners are listed together
    std::vector<int> window_;           // pixels of a window, as input offsets from its origin
    std::vector<int> origin_, target_;  // windows of a sample: offset of the input patch, of the output pixel
    std::vector<int> shift_, tap_;      // vectors of a patch and its elements, as input offsets
    bool few_taps_;                     // few enough that lists of winners cost more than they save
    std::vector<const T*> left_;        // patches of the windows computed together
    Buffer<T> packed_, pixels_, bias_;
    Buffer<Index<T>> winner_;
    Buffer<Index<T>> surplus_;  // 0 for real channels, -1 (never a winner) for those that fill up a vector
    WinnerLists<T> winners_;
    std::unique_ptr<WinogradForward<T>> winograd_;  // where that is faster
};

}  // namespace feddag
