// Count the questions of a page whose first opened choice was the right one. Everything else of a
// quiz works without a script.
const questions = [...document.querySelectorAll(".quiz")];
const first = new Map(); // question -> whether its first choice was right

if (questions.length) {
  const score = document.createElement("p");
  score.className = "quiz-score";
  score.setAttribute("role", "status"); // read aloud when it changes
  questions.at(-1).after(score);

  for (const question of questions) {
    for (const choice of question.querySelectorAll(".choice")) {
      choice.addEventListener("toggle", () => {
        if (!choice.open || first.has(question)) return;
        first.set(question, choice.classList.contains("right"));
        const right = [...first.values()].filter(Boolean).length;
        score.textContent = `Right at the first try: ${right} of ${first.size} answered, ${questions.length} in all.`;
      });
    }
  }
}
