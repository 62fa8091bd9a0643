"""Hugging Face's Trainer with a callback that makes a transformer small after epoch 4; checkpoints resume.

python examples/hf_trainer.py   (needs transformers, accelerate and scikit-learn; torchrun works as well)
"""

import sys

import torch
from sklearn.datasets import load_digits
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import pcn
from pcn.integrations.transformers import SwitchCallback

# A digit is read as a sentence of 16 words, each the mean of 2 x 2 pixels: nothing has to be downloaded.
CONFIG = BertConfig(
    vocab_size=17,
    max_position_embeddings=16,
    num_labels=10,
    hidden_size=64,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    initializer_range=0.1,
)


def main():
    torch.manual_seed(0)
    pixels, digits = load_digits(return_X_y=True)
    words = torch.tensor(pixels).view(-1, 4, 2, 4, 2).mean((2, 4)).long().flatten(1)
    samples = [{"input_ids": word, "labels": int(digit)} for word, digit in zip(words, digits, strict=True)]
    order = torch.randperm(len(samples)).tolist()
    train, test = ([samples[index] for index in part] for part in (order[:1300], order[1300:]))

    arguments = TrainingArguments(
        "hf_digits",
        num_train_epochs=8,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=100,
        learning_rate=3e-3,
        warmup_steps=40,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=2,
        use_cpu=True,
        report_to="none",
    )
    trainer = Trainer(
        BertForSequenceClassification(CONFIG),
        arguments,
        train_dataset=train,
        eval_dataset=test,
        compute_metrics=lambda result: {"accuracy": (result.predictions.argmax(1) == result.label_ids).mean().item()},
    )
    calibration = [trainer.data_collator(train[start : start + 100]) for start in range(0, 1000, 100)]
    switch = SwitchCallback(calibration, params=0.4, at=4).attach(trainer)
    trainer.train(resume_from_checkpoint="--resume" in sys.argv)

    accuracy = trainer.evaluate()["eval_accuracy"]
    size = sum(parameter.numel() for parameter in trainer.model.parameters())
    if trainer.is_world_process_zero():
        print(switch.plan)
        print(f"{size:,} trained parameters, test accuracy {accuracy:.1%}")
        pcn.save(trainer.model, "small_hf_digits")


if __name__ == "__main__":
    main()
