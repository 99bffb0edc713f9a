// The layers whose speed does not matter: written for clarity, correct for every shape.
#pragma once
#include <algorithm>
#include <numeric>

#include "layer.hpp"

namespace feddag {

// Calls work(sample, pixel of in, pixel of out) for every pixel of a layer that keeps the image's size.
template <class Work> void for_each_pixel(const Layout& in, const Layout& out, int batch, Work work) {
    for (int q = 0; q < batch; q++)
        for (int y = 0; y < in.h; y++)
            for (int x = 0; x < in.w; x++) work(q, q * in.size() + in.at(y, x), q * out.size() + out.at(y, x));
}

template <class T> class ReLU final : public Layer<T> {
public:
    ReLU(Layout input, Layout output) { in = input, out = output; }
    void forward(const T* x, T* y, const Pass& pass) override {
        for_each_pixel(in, out, pass.batch, [&](int, std::size_t i, std::size_t o) {
            for (int c = 0; c < in.c; c++) y[o + c] = x[i + c] <= 0 ? T(0) : x[i + c];
        });
    }
    void backward(const T* x, const T*, T* gy, T* gx, const Pass& pass) override {
        if (!gx) return;
        for_each_pixel(in, out, pass.batch, [&](int, std::size_t i, std::size_t o) {
            for (int c = 0; c < in.c; c++) gx[i + c] = x[i + c] <= 0 ? T(0) : gy[o + c];
        });
    }
    using Layer<T>::in;
    using Layer<T>::out;
};

// Multiplies with 0 or 1 / (1 - p); draws are numbered in PyTorch's order: sample, channel, row, column.
template <class T> class Dropout final : public Layer<T> {
public:
    Dropout(double p, int number, Layout input, Layout output, int batch)
        : threshold_(int(std::nearbyint(p * 65536))),
          number_(number),
          scale_(T(float(1 / (1 - p)))),
          draws_(round_up(batch * input.elements(), 16)) {
        in = input, out = output;
    }
    void forward(const T* x, T* y, const Pass& pass) override {
        if (pass.training)
            dropout_draws(pass.key, number_, pass.step, std::size_t(pass.batch) * in.elements(), draws_.data());
        apply(x, in, y, out, pass);
    }
    void backward(const T*, const T*, T* gy, T* gx, const Pass& pass) override {
        if (gx) apply(gy, out, gx, in, pass);
    }
    using Layer<T>::in;
    using Layer<T>::out;

private:
    void apply(const T* from, const Layout& from_layout, T* to, const Layout& to_layout, const Pass& pass) const {
        const int pixels = in.h * in.w;
        for (int q = 0; q < pass.batch; q++)
            for (int y = 0, pixel = 0; y < in.h; y++)
                for (int x = 0; x < in.w; x++, pixel++) {
                    const T* source = from + q * from_layout.size() + from_layout.at(y, x);
                    T* sink = to + q * to_layout.size() + to_layout.at(y, x);
                    const std::uint16_t* draw = draws_.data() + std::size_t(q) * in.elements() + pixel;
                    for (int c = 0; c < in.c; c++)
                        sink[c] = !pass.training                                ? source[c]
                                  : draw[std::size_t(c) * pixels] >= threshold_ ? source[c] * scale_
                                                                                : T(0);
                }
    }
    int threshold_, number_;
    T scale_;
    std::vector<std::uint16_t> draws_;
};

template <class T> class MaxPool final : public Layer<T> {
public:
    MaxPool(int kernel, int stride, Layout input, Layout output, int batch)
        : kernel_(kernel), stride_(stride), winner_(batch * output.size()) {
        in = input, out = output;
    }
    void forward(const T* x, T* y, const Pass& pass) override {
        for_each_pixel(out, out, pass.batch, [&](int q, std::size_t, std::size_t o) {
            const auto [row, column] = position(o - q * out.size());
            for (int c = 0; c < in.c; c++) {
                std::size_t best = q * in.size() + in.at(row, column) + c;
                for (int dy = 0; dy < in.rows(kernel_); dy++)
                    for (int dx = 0; dx < kernel_; dx++) {
                        const std::size_t i = q * in.size() + in.at(row + dy, column + dx) + c;
                        if (x[i] > x[best]) best = i;
                    }
                y[o + c] = x[best];
                winner_[o + c] = best;
            }
        });
    }
    void backward(const T*, const T*, T* gy, T* gx, const Pass& pass) override {
        if (!gx) return;
        std::fill_n(gx, pass.batch * in.size(), T(0));
        for_each_pixel(out, out, pass.batch, [&](int, std::size_t, std::size_t o) {
            for (int c = 0; c < in.c; c++) gx[winner_[o + c]] += gy[o + c];
        });
    }
    using Layer<T>::in;
    using Layer<T>::out;

private:
    std::pair<int, int> position(std::size_t o) const {
        const int pixel = int(o / out.stored);
        return {(pixel / out.width() - out.pad_rows()) * stride_, (pixel % out.width() - out.pad) * stride_};
    }
    int kernel_, stride_;
    std::vector<std::size_t> winner_;
};

template <class T> class AvgPool final : public Layer<T> {
public:
    AvgPool(int kernel, int stride, Layout input, Layout output) : kernel_(kernel), stride_(stride) {
        in = input, out = output;
    }
    void forward(const T* x, T* y, const Pass& pass) override {
        std::fill_n(y, pass.batch * out.size(), T(0));
        over_windows(pass.batch, [&](std::size_t i, std::size_t o) {
            for (int c = 0; c < in.c; c++) y[o + c] += x[i + c] * share();
        });
    }
    void backward(const T*, const T*, T* gy, T* gx, const Pass& pass) override {
        if (!gx) return;
        std::fill_n(gx, pass.batch * in.size(), T(0));
        over_windows(pass.batch, [&](std::size_t i, std::size_t o) {
            for (int c = 0; c < in.c; c++) gx[i + c] += gy[o + c] * share();
        });
    }
    using Layer<T>::in;
    using Layer<T>::out;

private:
    T share() const { return T(1) / T(in.rows(kernel_) * kernel_); }
    template <class Work> void over_windows(int batch, Work work) const {
        for (int q = 0; q < batch; q++)
            for (int y = 0; y < out.h; y++)
                for (int x = 0; x < out.w; x++)
                    for (int dy = 0; dy < in.rows(kernel_); dy++)
                        for (int dx = 0; dx < kernel_; dx++)
                            work(q * in.size() + in.at(y * stride_ + dy, x * stride_ + dx),
                                 q * out.size() + out.at(y, x));
    }
    int kernel_, stride_;
};

template <class T> class GroupNorm final : public Layer<T> {
public:
    GroupNorm(const std::string& name, int groups, double eps, Layout input, Layout output, int batch)
        : groups_(groups), eps_(eps), mean_(std::size_t(batch) * groups), scale_(std::size_t(batch) * groups) {
        in = input, out = output;
        params.resize(2);
        params[0].lay_out(name + ".weight", {in.c}, round_up(in.c, kLanes<T>));
        params[1].lay_out(name + ".bias", {in.c}, round_up(in.c, kLanes<T>));
        for (auto& p : params) std::iota(p.offset.begin(), p.offset.end(), 0);
    }
    void forward(const T* x, T* y, const Pass& pass) override {
        const int size = in.c / groups_;
        const T count = T(in.h) * T(in.w) * T(size);
        for (int q = 0; q < pass.batch; q++)
            for (int g = 0; g < groups_; g++) {
                T sum = 0, squares = 0;
                over_group(q, g, [&](std::size_t i, std::size_t, int) { sum += x[i]; });
                const T mean = sum / count;
                over_group(q, g, [&](std::size_t i, std::size_t, int) { squares += (x[i] - mean) * (x[i] - mean); });
                const T scale = T(1) / std::sqrt(squares / count + T(eps_));
                over_group(q, g, [&](std::size_t i, std::size_t o, int c) {
                    y[o] = (x[i] - mean) * scale * params[0].value[c] + params[1].value[c];
                });
                mean_[q * groups_ + g] = mean;
                scale_[q * groups_ + g] = scale;
            }
    }
    void backward(const T* x, const T*, T* gy, T* gx, const Pass& pass) override {
        const int size = in.c / groups_;
        const T count = T(in.h) * T(in.w) * T(size);
        if (pass.sgd)
            for (auto& p : params) p.grad.clear();
        for (int q = 0; q < pass.batch; q++)
            for (int g = 0; g < groups_; g++) {
                const T mean = mean_[q * groups_ + g], scale = scale_[q * groups_ + g];
                T sum_d = 0, sum_dx = 0;  // over the group: d = gy * weight, and d times the normalised x
                over_group(q, g, [&](std::size_t i, std::size_t o, int c) {
                    const T normal = (x[i] - mean) * scale, d = gy[o] * params[0].value[c];
                    sum_d += d;
                    sum_dx += d * normal;
                    if (pass.sgd) params[0].grad[c] += gy[o] * normal, params[1].grad[c] += gy[o];
                });
                if (!gx) continue;
                over_group(q, g, [&](std::size_t i, std::size_t o, int c) {
                    const T normal = (x[i] - mean) * scale;
                    gx[i] = scale * (gy[o] * params[0].value[c] - (sum_d + normal * sum_dx) / count);
                });
            }
    }
    using Layer<T>::in;
    using Layer<T>::out;
    using Layer<T>::params;

private:
    template <class Work> void over_group(int q, int g, Work work) const {
        const int size = in.c / groups_;
        for (int y = 0; y < in.h; y++)
            for (int x = 0; x < in.w; x++)
                for (int c = g * size; c < (g + 1) * size; c++)
                    work(q * in.size() + in.at(y, x) + c, q * out.size() + out.at(y, x) + c, c);
    }
    int groups_;
    double eps_;
    std::vector<T> mean_, scale_;
};

}  // namespace feddag
